"""Kubernetes as a cluster: what its API server keeps, drawn for the core; plans, as API calls.

Nothing is remembered here that the API server does not know, but for the moments before its watches
say what we did ourselves: kill it at any instant and the next one sees the same world. Knows which
objects are looked at and when; what they mean stands in the files beside it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from runai.hub_service.clusters.base import Refused
from runai.hub_service.clusters.kubernetes import projects as project_objects
from runai.hub_service.clusters.kubernetes.acting import Acting, at_once
from runai.hub_service.clusters.kubernetes.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.grouping import Group, groups
from runai.hub_service.clusters.kubernetes.objects import (
    Job,
    Machine,
    Pod,
    project_label,
    read_job,
    read_machine,
    read_pod,
)
from runai.hub_service.clusters.kubernetes.picture import Promise, World, snapshot
from runai.hub_service.clusters.kubernetes.slots import Slots
from runai.hub_service.clusters.kubernetes.telling import pod_path
from runai.hub_service.clusters.kubernetes.watching import Mirror
from runai.hub_service.clusters.records import ProjectRecord, WorkloadId
from runai.hub_service.errors import Conflict, NotFound, Unavailable
from runai.hub_service.scheduler.model import (
    Decision,
    Move,
    Plan,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Wait,
)
from runai.hub_service.scheduler.quantity import WHOLE_GPU

__all__ = ["KubernetesCluster"]

LEAVES_WITHIN_S = 30.0
TRIES_AGAIN_IN_S = 1.0


@dataclass(slots=True)
class _OurDoing:
    """What we did and the watches have not shown yet, by the pod's UID."""

    bound: dict[str, tuple[str, float]] = field(default_factory=dict)
    evicted: dict[str, float] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    doubtful: dict[str, Pod] = field(default_factory=dict)

    def applied_to(self, pods: Sequence[Pod]) -> list[Pod]:
        """Return pods as they are by now; forget what the watches have caught up with."""
        here = {pod.uid: pod for pod in pods}
        self.bound = {u: at for u, at in self.bound.items() if u in here and not here[u].node}
        self.evicted = {
            u: at for u, at in self.evicted.items() if u in here and here[u].deleted is None
        }
        self.told = {u: text for u, text in self.told.items() if u in here and not here[u].node}
        if not (self.bound or self.evicted or self.told):
            return list(pods)
        return [self._applied(pod) for pod in pods]

    def _applied(self, pod: Pod) -> Pod:
        if (bound := self.bound.get(pod.uid)) is not None:
            pod = replace(pod, node=bound[0], bound=bound[1])
        if (evicted := self.evicted.get(pod.uid)) is not None:
            pod = replace(pod, deleted=evicted + LEAVES_WITHIN_S)
        if (told := self.told.get(pod.uid)) is not None:
            pod = replace(pod, sentence=told)
        return pod


class KubernetesCluster:
    """One scheduler of one Kubernetes cluster: that of the pods that name it."""

    def __init__(
        self, api: Api, *, default_project: str = "default", clock: Callable[[], float] = time.time
    ) -> None:
        """Look at nothing yet: `run` does. `default_project` owns what names no project."""
        self._api = api
        self._default_project = default_project
        self._clock = clock
        self._change = asyncio.Event()
        notice = self._change.set
        self._pods: Mirror[Pod] = Mirror(api, "/api/v1/pods", read_pod, notice)
        self._machines: Mirror[Machine] = Mirror(api, "/api/v1/nodes", read_machine, notice)
        self._jobs: Mirror[Job] = Mirror(api, "/apis/batch/v1/jobs", read_job, notice)
        self._namespaces: Mirror[str] = Mirror(api, "/api/v1/namespaces", _project_of, notice)
        self._projects: Mirror[ProjectRecord] = Mirror(
            api, project_objects.PROJECTS, project_objects.read_project, notice
        )
        self._mirrors: tuple[Mirror[Any], ...] = (
            self._pods,
            self._machines,
            self._jobs,
            self._namespaces,
            self._projects,
        )
        self._doing = _OurDoing()
        self._slots = Slots()
        self._promises: dict[str, Promise] = {}
        self._broken_since: dict[WorkloadId, float] = {}
        self._statuses: dict[str, Mapping[str, Any]] = {}
        self._groups: dict[WorkloadId, Group] = {}
        """What the last snapshot was drawn from."""

    async def run(self) -> NoReturn:
        """Follow the API server until cancelled; call once."""
        async with asyncio.TaskGroup() as following:
            for mirror in self._mirrors:
                following.create_task(mirror.run())
        raise AssertionError("mirrors run for ever")

    async def changed(self) -> None:
        """Return when anything that a snapshot shows has changed since the last `observe`."""
        await self._change.wait()

    async def observe(self) -> Snapshot:
        """Return everything the core needs.

        Raises:
            Unavailable: the API server must be asked what became of an earlier decision, and does
                not answer.
        """
        for mirror in self._mirrors:
            await mirror.listed()
        await self._resolve_doubts()
        self._change.clear()
        now = self._clock()
        pods = self._doing.applied_to(list(self._pods.objects.values()))
        found = groups(
            pods,
            {job.uid: job for job in self._jobs.objects.values()},
            self._namespaces.objects,
            self._default_project,
        )
        self._groups = {group.name: group for group in found}
        waiting = {pod.uid for group in found for pod in group.pods if not pod.node}
        self._promises = {u: p for u, p in self._promises.items() if u in waiting}
        self._note_broken(now)
        records = list(self._projects.objects.values())
        return snapshot(
            now,
            World(
                machines=list(self._machines.objects.values()),
                pods=pods,
                groups=found,
                projects=project_objects.for_core(records, project_objects.misplaced(records)),
                devices=self._slots.held(pods),
                promises=self._promises,
                broken_since=self._broken_since,
            ),
        )

    async def apply(self, plan: Plan) -> Sequence[Refused]:
        """Carry out the decisions in the plan's order; a refused one costs only itself."""
        acting = Acting(self._api)
        by_name = {pod.key: pod for group in self._groups.values() for pod in group.pods}
        calls: list[Callable[[], Any]] = []
        for decision in plan.decisions:
            calls += self._calls(decision, by_name, acting)
        for group in self._groups.values():
            if group.refusal:
                calls += [
                    partial(acting.refuse, pod, group.refusal) for pod in group.pods if not pod.node
                ]
        await at_once(calls)
        now = self._clock()
        for uid, start in acting.bound.items():
            self._doing.bound[uid] = (start.node, now)
            self._promises.pop(uid, None)
            self._slots.hold(uid, start.node, tuple(share.device for share in start.devices))
        self._doing.evicted.update(dict.fromkeys(acting.evicted, now))
        self._doing.told.update(acting.told)
        self._doing.doubtful.update(acting.doubtful)
        await self._write_statuses(plan)
        if acting.refused:
            # No watch may ever tell that it would be possible now.
            asyncio.get_running_loop().call_later(TRIES_AGAIN_IN_S, self._change.set)
        return acting.refused

    async def suspend(self, workload: WorkloadId) -> None:
        """Take a Job out of the queue, and stop it if it runs; a repeat changes nothing.

        Raises:
            NotFound: there is no such Job.
            Conflict: it is a bare pod, which is stopped by deleting it.
        """
        await self._suspend(workload, is_suspended=True)

    async def resume(self, workload: WorkloadId) -> None:
        """Put a suspended Job back into the queue, in its old place; a repeat changes nothing."""
        await self._suspend(workload, is_suspended=False)

    # -- inside ------------------------------------------------------------------------------------

    def _calls(
        self, decision: Decision, by_name: Mapping[str, Pod], acting: Acting
    ) -> list[Callable[[], Any]]:
        """Return the calls that carry out a decision; none where it is true already."""
        if isinstance(decision, Wait):
            group = self._groups.get(decision.workload)
            pods = group.pods if group is not None else ()
            return [partial(acting.wait, decision, pod) for pod in pods if not pod.node]
        pod = by_name.get(decision.worker)
        if pod is None:
            text = f"there is no pod {decision.worker}"
            acting.refused.append(Refused(decision.workload, decision.worker, text))
            return []
        match decision:
            case Start() if not pod.node:
                return [partial(acting.start, decision, pod)]
            case Stop() | Move() | Resize() if pod.node and pod.deleted is None:
                return [partial(acting.stop, decision, pod)]
            case Reserve() if not pod.node:
                devices = tuple(share.device for share in decision.devices)
                self._promises[pod.uid] = Promise(decision.node, devices)
                return [partial(acting.promise, decision, pod)]
            case Unreserve():
                self._promises.pop(pod.uid, None)
        return []

    async def _resolve_doubts(self) -> None:
        for uid, pod in list(self._doing.doubtful.items()):
            try:
                found = read_pod(await self._api.get(pod_path(pod)))
            except ApiError as error:
                if error.is_unanswered:
                    raise Unavailable(
                        f"Kubernetes does not say what became of pod {pod.key}: {error.message}.",
                        hint="It is asked again in a moment.",
                    ) from error
            else:
                if found.uid == uid and found.node:
                    self._doing.bound[uid] = (found.node, found.bound or self._clock())
                if found.uid == uid and found.deleted is not None:
                    self._doing.evicted[uid] = self._clock()
            del self._doing.doubtful[uid]

    def _note_broken(self, now: float) -> None:
        """Remember since when gangs that run lack workers (R11)."""
        broken = {}
        for name, group in self._groups.items():
            up = sum(1 for pod in group.pods if pod.node and pod.deleted is None)
            if 0 < up < group.minimum:
                broken[name] = self._broken_since.get(name, now)
        self._broken_since = broken

    async def _write_statuses(self, plan: Plan) -> None:
        pending: Counter[str] = Counter()
        for group in self._groups.values():
            pending[group.project] += sum(
                pod.gpus * WHOLE_GPU for pod in group.pods if not pod.node
            )
        records = self._projects.objects
        wrong = project_objects.misplaced(records.values())
        for name in records:
            status = project_objects.status(
                plan.projects.get(name), pending[name], wrong.get(name, "")
            )
            if self._statuses.get(name) != status:
                try:
                    path = f"{project_objects.PROJECTS}/{name}/status"
                    await self._api.patch(path, {"status": status})
                except ApiError:
                    continue  # with the next cycle
                self._statuses[name] = status
        self._statuses = {name: self._statuses[name] for name in self._statuses if name in records}

    async def _suspend(self, workload: WorkloadId, *, is_suspended: bool) -> None:
        namespace, _, name = workload.partition("/")[2].partition(".")
        job = self._jobs.objects.get(f"{namespace}/{name}")
        if job is None:
            if f"{namespace}/{name}" in self._pods.objects:
                raise Conflict(f"{workload} is a pod of its own.", hint="Delete it instead.")
            raise NotFound(f"There is no Job {name} in namespace {namespace}.")
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
        await self._api.patch(path, {"spec": {"suspend": is_suspended}})


def _project_of(namespace: Object) -> str:
    return project_label(namespace["metadata"].get("labels", {}))
