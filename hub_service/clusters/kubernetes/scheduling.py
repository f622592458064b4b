"""The scheduler's half of Kubernetes: what its API server keeps, for the core; plans, as calls.

Nothing is remembered here that the API server does not know, but for the moments before its watches
say what we did ourselves: kill it at any instant and the next one sees the same world. Knows which
objects are looked at and when; what they mean stands in the files beside it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from runai.hub_service.clusters.kubernetes.actions.binder import Acting, at_once
from runai.hub_service.clusters.kubernetes.actions.node_backoff import Refusals, TurnedAway
from runai.hub_service.clusters.kubernetes.actions.pdb_backoff import Budgets
from runai.hub_service.clusters.kubernetes.actions.plan_executor import PlanCalls
from runai.hub_service.clusters.kubernetes.actions.project_status import ProjectStatuses
from runai.hub_service.clusters.kubernetes.actions.unconfirmed import (
    count_again,
    hold_no_more,
    resolve,
)
from runai.hub_service.clusters.kubernetes.client.api import Api, Object
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_keeper import Sharing
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import IMAGE, guards
from runai.hub_service.clusters.kubernetes.informers.informer import Mirror
from runai.hub_service.clusters.kubernetes.informers.job_informers import Jobs
from runai.hub_service.clusters.kubernetes.informers.node_pool import EVERYTHING, Pool
from runai.hub_service.clusters.kubernetes.objects import project_resource as project_objects
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    RESERVATIONS,
    SCHEDULER,
    Machine,
    Pod,
    project_label,
    read_machine,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import redrawn
from runai.hub_service.clusters.kubernetes.objects.pod_groups import (
    Group,
    Grouping,
    name_of,
    project_of,
)
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import adopted
from runai.hub_service.clusters.kubernetes.objects.volume_topology import (
    VOLUMES,
    Claim,
    Storage,
    StorageClass,
    Volume,
    placed,
    read_claim,
    read_class,
    read_volume,
)
from runai.hub_service.clusters.kubernetes.snapshot.assumed_state import Bound, OurDoing
from runai.hub_service.clusters.kubernetes.snapshot.capacity_check import room_for
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import Slots
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import left_on
from runai.hub_service.clusters.kubernetes.snapshot.gpu_inventory import Sizes
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import Drawing, Promise, World
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import ElasticJobs, elastic_jobs
from runai.hub_service.clusters.kubernetes.workloads.workload_records import Known
from runai.hub_service.model.cluster import Refused
from runai.hub_service.model.records import ElasticRules, ProjectRecord, WorkloadId
from runai.hub_service.scheduler.model.snapshot import (
    Move,
    Plan,
    Resize,
    Snapshot,
    Start,
    Stop,
    Wait,
)

TRIES_AGAIN_IN_S = 1.0


class Scheduling:
    """One scheduler of one Kubernetes cluster: that of the pods that name it."""

    def __init__(
        self,
        api: Api,
        *,
        default_project: str = "default",
        reservation_image: str = IMAGE,
        elastic: ElasticRules | None = None,
        pool: Pool = EVERYTHING,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Look at nothing yet: `run` does. `default_project` owns what names no project.

        `elastic` says how eagerly elastic jobs grow; `pool` which part of the cluster is ours.
        """
        self._api = api
        self._default_project = default_project
        self._clock = clock
        self._pool = pool
        self._change = asyncio.Event()
        self._next_change = asyncio.Event()
        notice = self._notice
        self._pods: Mirror[Pod] = Mirror(
            api,
            "/api/v1/pods",
            pool.read_pod,
            notice,
            # Of thousands of pods one or the other comes up at any moment: nobody decides by it.
            is_detail=_is_detail,
            on_detail=self._announce,
        )
        self._machines: Mirror[Machine] = Mirror(
            api, "/api/v1/nodes", read_machine, notice, labelSelector=pool.selector
        )
        self._jobs = Jobs(api, notice, pool)
        self._namespaces: Mirror[str] = Mirror(api, "/api/v1/namespaces", _project_of, notice)
        self._projects: Mirror[ProjectRecord] = Mirror(
            api,
            project_objects.PROJECTS,
            project_objects.read_project,
            notice,
            labelSelector=pool.selector,
        )
        self._claims: Mirror[Claim] = Mirror(
            api, "/api/v1/persistentvolumeclaims", read_claim, notice
        )
        self._volumes: Mirror[Volume] = Mirror(api, VOLUMES, read_volume, notice)
        self._classes: Mirror[StorageClass] = Mirror(
            api, "/apis/storage.k8s.io/v1/storageclasses", read_class, notice
        )
        self._mirrors: tuple[Mirror[Any] | Jobs, ...] = (
            self._pods,
            self._machines,
            self._jobs,
            self._namespaces,
            self._projects,
            self._claims,
            self._volumes,
            self._classes,
        )
        self._events = EventQueue(api)
        self._doing = OurDoing()
        self._slots = Slots()
        self._sizes = Sizes()
        self._grouping = Grouping()
        self._drawing = Drawing()
        refusals = Refusals(clock)
        self._turned_away = TurnedAway(self._events, refusals, clock)
        self._budgets = Budgets(self._events, clock)
        self._sharing = Sharing(
            api,
            self._doing,
            self._slots,
            refusals,
            self._events,
            take=partial(self._pods.take, quietly=True),
            is_there=lambda: RESERVATIONS in self._namespaces.objects,
            clock=clock,
            image=reservation_image,
            labels=pool.labels,
        )
        self._elastic = ElasticJobs(api, self._take_state, elastic or ElasticRules())
        self._promises: dict[str, Promise] = {}
        self._broken_since: dict[WorkloadId, float] = {}
        self._statuses = ProjectStatuses(api)
        self._groups: dict[WorkloadId, Group] = {}
        """What the last snapshot was drawn from."""
        self._waits: dict[WorkloadId, Wait] = {}
        """Why workloads wait, by the last plan."""
        self._stops: dict[WorkloadId, Stop | Move | Resize] = {}
        """Why workloads were stopped last."""

    async def run(self) -> NoReturn:
        """Follow the API server until cancelled; call once."""
        async with asyncio.TaskGroup() as following:
            for mirror in self._mirrors:
                following.create_task(mirror.run())
            following.create_task(self._events.run())
        raise AssertionError("mirrors run for ever")

    async def changed(self, *, pressing: bool = False) -> None:
        """Return when anything that a snapshot shows has changed since the last `observe`."""
        del pressing  # what a watch tells of is not looked at before
        await self._change.wait()

    async def observe(self) -> Snapshot:
        """Return everything the core needs.

        Raises:
            Unavailable: the API server must be asked what became of an earlier decision, and does
                not answer.
        """
        for mirror in self._mirrors:
            await mirror.listed()
        await resolve(self._api, self._doing, self._clock)
        self._change.clear()
        now = self._clock()
        pods, found = self._look(now)
        if self._turned_away.look(pods, self._jobs.by_uid(), self._machines.objects):
            self._look_again()
        kept = self._budgets.kept(pods)
        jobs, take = self._jobs.by_uid().values(), partial(self._jobs.take, quietly=True)
        is_left = await hold_no_more(self._api, jobs, take)
        if await count_again(self._api, pods) or kept or is_left:
            self._look_again()
        if any(pod.is_reservation or pod.grant is not None for pod in pods):
            await self._settle(pods, found)
            pods, found = self._look(now)
        self._groups = {group.name: group for group in found}
        self._doing.seen(found)
        self._note_broken(now)
        held = self._slots.held(pods)
        drawn = await self._elastic.settled(lambda: elastic_jobs(self._known(pods, held)), now)
        if self._elastic.failed:
            self._look_again()
        records = list(self._projects.objects.values())
        return self._drawing.snapshot(
            now,
            World(
                machines=self._nodes(pods),
                pods=pods,
                groups=found,
                projects=project_objects.for_core(records, project_objects.misplaced(records)),
                devices=held,
                promises=self._promises,
                closed=self._sharing.closed(pods),
                broken=self._sharing.broken(pods, held),
                broken_since=self._broken_since,
                kept=kept,
                shapes={name: self._elastic.shape(job, now) for name, job in drawn.items()},
                resize_cost_s=self._elastic.rules.resize_cost_s,
            ),
        )

    async def apply(self, plan: Plan, *, told: object = None) -> Sequence[Refused]:
        """Carry out the decisions in the plan's order; a refused one costs only itself."""
        del told  # all know it at once, in the end
        acting = Acting(self._api, self._sharing, self._events)
        pods = self._applied_pods()
        machines = self._nodes(pods)
        held = self._slots.held(pods)
        calls = PlanCalls(
            self._groups,
            self._promises,
            acting,
            absent=self._absent,
            room=room_for(plan, machines, pods, held, self._groups.values(), self._promises),
            guards=guards(pods, held),
            storage=self._storage,
            machines={machine.name: machine for machine in left_on(machines, pods)},
            kept_for=self._budgets.told,
            trouble=self._sharing.trouble,
            now=self._clock(),
        )
        calling = calls.of(plan)
        await self._elastic.prepare(
            plan, lambda: elastic_jobs(self._known(pods, held)), self._clock()
        )
        with self._events.stepping_back():
            await at_once(calling)
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
        self._budgets.note(acting.kept)
        waits = {d.workload: d for d in plan.decisions if isinstance(d, Wait)}
        started = {d.workload for d in plan.decisions if isinstance(d, Start)}
        kept = {w: wait for w, wait in self._waits.items() if w not in started}
        self._waits = kept | waits if plan.projects == {} else waits
        self._stops = {w: d for w, d in self._stops.items() if w not in started} | {
            d.workload: d for d in plan.decisions if isinstance(d, Stop | Move | Resize)
        }
        self._announce()
        await self._statuses.write(plan, self._projects.objects, self._groups.values(), machines)
        if acting.refused:
            # No watch may ever tell that it would be possible now.
            self._look_again()
        return acting.refused

    # -- inside ------------------------------------------------------------------------------------

    def _applied_pods(self) -> list[Pod]:
        """Return pods as they are by now, what the watches have not shown yet included."""
        seen = self._pool.seen_from(self._pods.objects.values(), self._machines.objects)
        pods = self._doing.applied_to(seen)
        return adopted(pods, self._jobs.by_uid())

    def _nodes(self, pods: Iterable[Pod]) -> list[Machine]:
        """Return the nodes, with what their devices have."""
        return self._sizes.of(self._machines.objects.values(), pods)

    def _look(self, now: float) -> tuple[list[Pod], list[Group]]:
        """Return pods and workloads; forget promises to those who do not wait any more."""
        storage, jobs = self._storage, self._jobs.by_uid()
        pods = [
            placed(pod, storage) if pod.claims and not pod.node else pod
            for pod in self._applied_pods()
        ]
        for uid, job in jobs.items():
            is_ours = job.template.scheduler == SCHEDULER
            if is_ours and any(pod.claims for pod in (job.template, *job.templates)):
                jobs[uid] = redrawn(job, partial(placed, storage=storage))
        found = self._grouping.groups(
            pods,
            jobs,
            self._namespaces.objects,
            self._default_project,
            self._doing.still_awaited(jobs, now),
        )
        waiting = {pod.place for group in found for pod in group.pods if pod.may_be_promised}
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

    def _known(self, pods: Sequence[Pod], held: Mapping[str, tuple[int, ...]]) -> Known:
        """Return all that records are drawn from; `held` are the devices of pods."""
        jobs = self._jobs.by_uid()
        states = {uid: self._elastic.state_of(job) for uid, job in jobs.items()}
        return Known(
            pods,
            jobs,
            self._namespaces.objects,
            self._default_project,
            held,
            self._promises,
            self._waits,
            self._stops,
            {uid: state for uid, state in states.items() if state is not None},
        )

    @property
    def _storage(self) -> Storage:
        return Storage(self._claims.objects, self._volumes.objects, self._classes.objects)

    def _absent(self, workload: WorkloadId, worker: str) -> str:
        """Say why a decision about a worker cannot be carried out."""
        if workload in self._groups:
            return f"{workload} has no worker {worker}"
        for job in self._jobs.by_uid().values():
            project = project_of(job.template, self._namespaces.objects, self._default_project)
            if f"{project}/{name_of(job)}" == workload:
                return f"{workload} is {'suspended' if job.is_suspended else 'finished'}"
        return f"there is no workload {workload}"

    def _notice(self) -> None:
        self._change.set()
        self._announce()

    def _take_state(self, found: Object) -> None:
        """Note a Job on which we wrote who trains: nobody decides by it, its workers wait."""
        self._jobs.take(found, quietly=True)
        self._announce()

    def _announce(self) -> None:
        """Wake everybody who waits for the next change of a record."""
        self._next_change.set()
        self._next_change = asyncio.Event()

    def _note_broken(self, now: float) -> None:
        """Remember since when gangs that run lack workers (R11)."""
        broken = {}
        for name, group in self._groups.items():
            if group.minimum == 1:
                continue  # of most of them nobody need count the pods
            up = sum(1 for pod in group.pods if pod.node and pod.deleted is None)
            if 0 < up < group.minimum:
                broken[name] = self._broken_since.get(name, now)
        self._broken_since = broken


def _is_detail(before: Pod, now: Pod) -> bool:
    """Tell whether a pod has only come up."""
    return not now.is_elastic and replace(before, is_up=now.is_up, address=now.address) == now


def _project_of(namespace: Object) -> str:
    return project_label(namespace["metadata"].get("labels", {}))
