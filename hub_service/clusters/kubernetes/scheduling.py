"""The scheduler's half of Kubernetes: what its API server keeps, for the core; plans, as calls.

Nothing is remembered here that the API server does not know, but for the moments before its watches
say what we did ourselves: kill it at any instant and the next one sees the same world. Knows which
objects are looked at and when; what they mean stands in the files beside it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from runai.hub_service.clusters.base import Refused
from runai.hub_service.clusters.kubernetes import projects as project_objects
from runai.hub_service.clusters.kubernetes.acting import Acting, at_once
from runai.hub_service.clusters.kubernetes.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.doing import Bound, OurDoing
from runai.hub_service.clusters.kubernetes.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.grouping import Group, groups, name_of, project_of
from runai.hub_service.clusters.kubernetes.jobs import Job, read_job
from runai.hub_service.clusters.kubernetes.objects import (
    Machine,
    Pod,
    project_label,
    read_machine,
    read_pod,
)
from runai.hub_service.clusters.kubernetes.picture import Promise, World, snapshot
from runai.hub_service.clusters.kubernetes.plans import PlanCalls, Room
from runai.hub_service.clusters.kubernetes.reservations import IMAGE, guards
from runai.hub_service.clusters.kubernetes.sharing import Sharing
from runai.hub_service.clusters.kubernetes.slots import Slots, shares_of
from runai.hub_service.clusters.kubernetes.telling import pod_path
from runai.hub_service.clusters.kubernetes.watching import Mirror
from runai.hub_service.clusters.records import ProjectRecord, WorkloadId
from runai.hub_service.errors import Unavailable
from runai.hub_service.scheduler.model import Move, Plan, Snapshot, Start, Stop, Wait

__all__ = ["Scheduling"]

TRIES_AGAIN_IN_S = 1.0


class Scheduling:
    """One scheduler of one Kubernetes cluster: that of the pods that name it."""

    def __init__(
        self,
        api: Api,
        *,
        default_project: str = "default",
        reservation_image: str = IMAGE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Look at nothing yet: `run` does. `default_project` owns what names no project."""
        self._api = api
        self._default_project = default_project
        self._clock = clock
        self._change = asyncio.Event()
        self._next_change = asyncio.Event()
        notice = self._notice
        self._pods: Mirror[Pod] = Mirror(
            api,
            "/api/v1/pods",
            read_pod,
            notice,
            # Of thousands of pods one or the other comes up at any moment: nobody decides by it.
            is_detail=lambda before, now: replace(before, is_up=now.is_up) == now,
            on_detail=self._announce,
        )
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
        self._events = EventQueue(api)
        self._doing = OurDoing()
        self._slots = Slots()
        self._sharing = Sharing(
            api,
            self._doing,
            self._slots,
            take=partial(self._pods.take, quietly=True),
            clock=clock,
            image=reservation_image,
        )
        self._promises: dict[str, Promise] = {}
        self._broken_since: dict[WorkloadId, float] = {}
        self._statuses: dict[str, Mapping[str, Any]] = {}
        self._groups: dict[WorkloadId, Group] = {}
        """What the last snapshot was drawn from."""
        self._waits: dict[WorkloadId, Wait] = {}
        """Why workloads wait, by the last plan."""
        self._stops: dict[WorkloadId, Stop | Move] = {}
        """Why workloads were stopped last."""

    async def run(self) -> NoReturn:
        """Follow the API server until cancelled; call once."""
        async with asyncio.TaskGroup() as following:
            for mirror in self._mirrors:
                following.create_task(mirror.run())
            following.create_task(self._events.run())
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
        pods, found = self._look(now)
        if any(pod.is_reservation or pod.grant is not None for pod in pods):
            await self._settle(pods, found)
            pods, found = self._look(now)
        self._groups = {group.name: group for group in found}
        self._doing.seen(found)
        self._note_broken(now)
        held = self._slots.held(pods)
        records = list(self._projects.objects.values())
        return snapshot(
            now,
            World(
                machines=list(self._machines.objects.values()),
                pods=pods,
                groups=found,
                projects=project_objects.for_core(records, project_objects.misplaced(records)),
                devices=held,
                promises=self._promises,
                closed=self._sharing.closed(pods),
                broken=self._sharing.broken(pods, held),
                broken_since=self._broken_since,
            ),
        )

    async def apply(self, plan: Plan) -> Sequence[Refused]:
        """Carry out the decisions in the plan's order; a refused one costs only itself."""
        acting = Acting(self._api, self._sharing, self._events)
        pods = self._applied_pods()
        held = self._slots.held(pods)
        calls = PlanCalls(
            self._groups,
            self._promises,
            acting,
            absent=self._absent,
            room=self._room(pods, held),
            guards=guards(pods, held),
            now=self._clock(),
        )
        await at_once(calls.of(plan))
        now = self._clock()
        by_uid = {pod.uid: pod for pod in calls.pods.values()}
        for uid, (start, grant) in acting.bound.items():
            self._doing.bound[uid] = Bound(start.node, now, grant)
            self._promises.pop(by_uid[uid].place, None)
            if grant is None:  # else it has the numbers of its reservations
                self._slots.hold(uid, start.node, tuple(share.device for share in start.devices))
        self._doing.evicted.update(dict.fromkeys(acting.evicted, now))
        for found in acting.changed_jobs:
            self._jobs.take(found, quietly=True)
        self._doing.awaited.update(dict.fromkeys(acting.freed, now))
        for job in acting.paused:
            self._forget_promises(job)
        self._doing.told.update(acting.told)
        self._doing.doubtful.update(acting.doubtful)
        waits = {d.workload: d for d in plan.decisions if isinstance(d, Wait)}
        started = {d.workload for d in plan.decisions if isinstance(d, Start)}
        kept = {w: wait for w, wait in self._waits.items() if w not in started}
        self._waits = kept | waits if plan.projects == {} else waits
        self._stops = {w: d for w, d in self._stops.items() if w not in started} | {
            d.workload: d for d in plan.decisions if isinstance(d, Stop | Move)
        }
        self._announce()
        await self._write_statuses(plan)
        if acting.refused:
            # No watch may ever tell that it would be possible now.
            self._look_again()
        return acting.refused

    # -- inside ------------------------------------------------------------------------------------

    def _applied_pods(self) -> list[Pod]:
        """Return pods as they are by now, what the watches have not shown yet included."""
        return self._doing.applied_to(list(self._pods.objects.values()))

    def _look(self, now: float) -> tuple[list[Pod], list[Group]]:
        """Return pods and workloads; forget promises to those who do not wait any more."""
        pods, jobs = self._applied_pods(), self._known_jobs()
        found = groups(
            pods,
            jobs,
            self._namespaces.objects,
            self._default_project,
            self._doing.still_awaited(jobs, now),
        )
        waiting = {pod.place for group in found for pod in group.pods if not pod.node}
        self._promises = {u: p for u, p in self._promises.items() if u in waiting}
        return pods, found

    async def _settle(self, pods: Sequence[Pod], found: Sequence[Group]) -> None:
        """Bring the reservation pods to what is shared."""
        waiting = {pod.place: pod for group in found for pod in group.pods if not pod.node}
        nodes = {machine.name for machine in self._machines.objects.values()}
        held = self._slots.held(pods)
        await self._sharing.settle(pods, held, nodes, self._promises, waiting)
        if self._sharing.failed:
            self._look_again()

    def _look_again(self) -> None:
        """Look in a moment, whether or not a watch says that anything has changed."""
        asyncio.get_running_loop().call_later(TRIES_AGAIN_IN_S, self._change.set)

    def _forget_promises(self, job: str) -> None:
        """Keep no devices for the workers of a Job, by its UID."""
        for place in [place for place in self._promises if place.startswith(f"{job}/")]:
            del self._promises[place]

    def _known_jobs(self) -> dict[str, Job]:
        """Return all Jobs, by UID."""
        return {job.uid: job for job in self._jobs.objects.values()}

    def _room(self, pods: Sequence[Pod], held: Mapping[str, tuple[int, ...]]) -> Room:
        """Return whose the devices are; those that stop have theirs until they are gone."""
        seated = {p.uid: p for group in self._groups.values() for p in group.pods}
        most = {machine.name: machine.gpus for machine in self._machines.objects.values()}
        for pod in pods:
            if pod.node in most:
                most[pod.node] = max(most[pod.node], 1 + max(held.get(pod.uid, ()), default=-1))
        room = Room(most, {m.name: m.gpu_memory_mib for m in self._machines.objects.values()})
        for pod in pods:
            if pod.holds and not pod.is_reservation:
                shares = shares_of(pod, held.get(pod.uid, ()))
                room.hold(seated.get(pod.uid, pod), pod.node, shares)
        return room

    def _absent(self, workload: WorkloadId, worker: str) -> str:
        """Say why a decision about a worker cannot be carried out."""
        if workload in self._groups:
            return f"{workload} has no worker {worker}"
        for job in self._jobs.objects.values():
            project = project_of(job.template, self._namespaces.objects, self._default_project)
            if f"{project}/{name_of(job)}" == workload:
                return f"{workload} is {'suspended' if job.is_suspended else 'finished'}"
        return f"there is no workload {workload}"

    def _notice(self) -> None:
        self._change.set()
        self._announce()

    def _announce(self) -> None:
        """Wake everybody who waits for the next change of a record."""
        self._next_change.set()
        self._next_change = asyncio.Event()

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
                    at = found.bound or self._clock()
                    self._doing.bound[uid] = Bound(found.node, at, found.grant)
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
        largest_mib = max((m.gpu_memory_mib for m in self._machines.objects.values()), default=0)
        for group in self._groups.values():
            pending[group.project] += sum(
                pod.milli_gpus(largest_mib) for pod in group.pods if not pod.node
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


def _project_of(namespace: Object) -> str:
    return project_label(namespace["metadata"].get("labels", {}))
