"""The scheduler's view of Kubernetes: builds snapshots for the core, carries out its plans."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from runai.hub_service.clusters.kubernetes.actions.array_reconciler import reconcile_arrays
from runai.hub_service.clusters.kubernetes.actions.decision_executor import (
    DecisionExecutor,
    at_once,
)
from runai.hub_service.clusters.kubernetes.actions.killed_pods import KilledPods
from runai.hub_service.clusters.kubernetes.actions.node_backoff import NodeBackoff, RejectedPods
from runai.hub_service.clusters.kubernetes.actions.pdb_backoff import PdbBackoff
from runai.hub_service.clusters.kubernetes.actions.plan_calls import PlanCalls
from runai.hub_service.clusters.kubernetes.actions.project_status import ProjectStatuses
from runai.hub_service.clusters.kubernetes.actions.time_limits import end_timed_out
from runai.hub_service.clusters.kubernetes.actions.unconfirmed_calls import (
    clear_holds,
    resolve,
    restore_finalizers,
)
from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import device_reservations
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_reconciler import (
    ReservationReconciler,
)
from runai.hub_service.clusters.kubernetes.informers.cluster_informers import (
    TRIES_AGAIN_IN_S,
    ChangeSignals,
)
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects import project_resource as project_objects
from runai.hub_service.clusters.kubernetes.objects.array_elements import array_jobs
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    RESERVATIONS,
    SCHEDULER,
    KubeNode,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import with_templates
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup, PodGrouping
from runai.hub_service.clusters.kubernetes.objects.volume_binding import placed
from runai.hub_service.clusters.kubernetes.snapshot.assumed_state import Bound
from runai.hub_service.clusters.kubernetes.snapshot.device_bookings import (
    device_bookings,
    max_fitting_pods,
)
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import with_free_stock
from runai.hub_service.clusters.kubernetes.snapshot.gpu_memory import NodeDeviceMemory
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import (
    SnapshotBuilder,
    SnapshotInput,
)
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import ElasticJobs, elastic_jobs
from runai.hub_service.model.arrays import split_id
from runai.hub_service.model.cluster import Refused
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.scheduler.model.snapshot import (
    Move,
    Plan,
    Resize,
    Snapshot,
    Start,
    Stop,
    Wait,
)


class Scheduling:
    """Scheduler of one Kubernetes cluster, for the pods that name it."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        elastic: ElasticJobs,
        changes: ChangeSignals,
        *,
        pool: NodePool,
        reservation_image: str,
        clock: Callable[[], float],
    ) -> None:
        """Wire the parts without starting them; `pool` is this scheduler's part of the cluster."""
        self._api = api
        self._cache = cache
        self._informers = cache.informers
        self._elastic = elastic
        self._changes = changes
        self._clock = clock
        self.events = EventQueue(api)
        self.sizes = NodeDeviceMemory()
        self._grouping = PodGrouping()
        self._snapshot_builder = SnapshotBuilder()
        backoff = NodeBackoff(clock)
        self._rejected_pods = RejectedPods(self.events, backoff, clock)
        self._pdb_backoff = PdbBackoff(self.events, clock)
        self._killed = KilledPods(api, self.events, self._informers.killed)
        self.sharing = ReservationReconciler(
            api,
            cache.assumed,
            cache.device_ids,
            backoff,
            self.events,
            apply=partial(self._informers.pods.apply, quietly=True),
            has_namespace=lambda: RESERVATIONS in self._informers.namespaces.objects,
            clock=clock,
            image=reservation_image,
            labels=pool.labels,
        )
        self._below_min_since: dict[WorkloadId, float] = {}
        self._statuses = ProjectStatuses(api)
        self._timer: asyncio.TimerHandle | None = None
        self._groups: dict[WorkloadId, PodGroup] = {}
        """The workloads of the last snapshot."""

    async def run(self) -> NoReturn:
        """Run informers and the Event queue until cancelled; call once."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informers.run())
            tasks.create_task(self.events.run())
        raise AssertionError("informers run until cancelled")

    async def changed(self) -> None:
        """Return when anything in a snapshot has changed since the last `observe`."""
        await self._changes.unseen.wait()

    async def observe(self) -> Snapshot:
        """Return a snapshot of everything the core needs.

        Raises:
            Unavailable: the outcome of an earlier call must be read from the API server, which does
                not answer.
        """
        await self._informers.listed()
        await resolve(self._api, self._cache.assumed, self._clock)
        self._changes.unseen.clear()
        now = self._clock()
        pods, groups = self._update_groups(now)
        jobs, node_informer = self._informers.jobs, self._informers.nodes
        if self._rejected_pods.refresh(pods, jobs.by_uid(), node_informer.objects):
            self._changes.schedule_retry()
        protected = self._pdb_backoff.protected_pods(pods)
        apply = partial(jobs.apply, quietly=True)
        must_retry = await clear_holds(self._api, jobs.by_uid().values(), apply)
        must_retry = await self._killed.note(jobs.by_uid(), now, apply) or must_retry
        arrays = array_jobs(pods, jobs.by_uid()).values()
        must_retry = await reconcile_arrays(self._api, arrays, now, apply) or must_retry
        limited = self._cache.limited(pods)
        ended_uids, has_failed = await end_timed_out(
            self._api, limited.values(), self.events, now, apply
        )
        if ended_uids:
            self._cache.assumed.evicted.update(dict.fromkeys(ended_uids, now))
            self._changes.wake_waiters()
            pods, groups = self._update_groups(now)
            limited = self._cache.limited(pods)
        must_retry = must_retry or has_failed
        ends = (end for subject in limited.values() if (end := subject.ends_at))
        self._wake_at(min(ends, default=None), now)
        if await restore_finalizers(self._api, pods) or protected or must_retry:
            self._changes.schedule_retry()
        if any(pod.is_reservation or pod.grant is not None for pod in pods):
            await self._reconcile_reservations(pods, groups)
            pods, groups = self._update_groups(now)
        self._groups = {group.name: group for group in groups}
        self._cache.assumed.confirm(groups)
        self._track_incomplete_gangs(now)
        device_numbers = self._cache.device_ids.update(pods)
        settled_jobs = await self._elastic.reconcile(
            lambda: elastic_jobs(self._cache.state_of(pods, device_numbers)), now
        )
        if self._elastic.failed:
            self._changes.schedule_retry()
        records = list(self._informers.projects.objects.values())
        nodes = self._nodes(pods)
        types = {node.gpu_type for node in nodes}
        return self._snapshot_builder.snapshot(
            now,
            SnapshotInput(
                nodes=nodes,
                pods=pods,
                groups=groups,
                projects=project_objects.for_core(
                    records, project_objects.misplaced(records), types
                ),
                devices=device_numbers,
                nominations=self._cache.nominations,
                nodes_in_backoff=self.sharing.nodes_in_backoff(pods),
                broken=self.sharing.broken_devices(pods, device_numbers),
                below_min_since=self._below_min_since,
                protected=protected,
                limited=limited,
                shapes={name: self._elastic.shape(job, now) for name, job in settled_jobs.items()},
                resize_cost_s=self._elastic.rules.resize_cost_s,
            ),
        )

    async def apply(self, plan: Plan) -> Sequence[Refused]:
        """Carry out the decisions in the plan's order; return the refused ones."""
        cache, informers = self._cache, self._informers
        pods = cache.pods()
        executor = DecisionExecutor(self._api, self.sharing, self.events, cache.limited(pods))
        nodes = self._nodes(pods)
        device_numbers = cache.device_ids.update(pods)
        plan_calls = PlanCalls(
            self._groups,
            cache.nominations,
            executor,
            absent=self._absence_reason,
            bookings=device_bookings(
                plan, nodes, pods, device_numbers, self._groups.values(), cache.nominations
            ),
            reservations=device_reservations(pods, device_numbers),
            storage=informers.storage,
            nodes={node.name: node for node in with_free_stock(nodes, pods)},
            explain_protection=self._pdb_backoff.explanation,
            trouble=self.sharing.unavailable_reason,
            now=self._clock(),
        )
        api_calls = plan_calls.build(plan)
        await self._elastic.prepare(
            plan, lambda: elastic_jobs(cache.state_of(pods, device_numbers)), self._clock()
        )
        with self.events.throttled():
            await at_once(api_calls)
        now = self._clock()
        by_uid = {pod.uid: pod for pod in plan_calls.pods.values()}
        for uid, (start, grant) in executor.bound.items():
            cache.assumed.bound[uid] = Bound(start.node, now, grant)
            cache.nominations.pop(by_uid[uid].place, None)
            if grant is None:  # a pod with shares has the numbers of its reservations
                devices = tuple(share.device for share in start.devices)
                cache.device_ids.assign(uid, start.node, devices)
        cache.assumed.evicted.update(dict.fromkeys(executor.evicted, now))
        for found in executor.changed_jobs:
            informers.jobs.apply(found, quietly=True)
        cache.assumed.awaited.update(dict.fromkeys(executor.freed, now))
        cache.assumed.surplus.update(dict.fromkeys(executor.surplus, now))
        for job in executor.paused:
            cache.drop_nominations(job)
        cache.assumed.wait_reasons.update(executor.wait_reasons)
        cache.assumed.doubtful.update(executor.doubtful)
        self._pdb_backoff.record_protected(executor.protected)
        waits = _waits_by_line(plan, self._groups)
        started = {d.workload for d in plan.decisions if isinstance(d, Start)}
        earlier_waits = {w: wait for w, wait in cache.waits.items() if w not in started}
        is_partial = plan.projects == {}  # a whole plan has the shares of all projects
        cache.waits = earlier_waits | waits if is_partial else waits
        earlier_stops = {w: d for w, d in cache.stops.items() if w not in started}
        cache.stops = earlier_stops | {
            d.workload: d for d in plan.decisions if isinstance(d, Stop | Move | Resize)
        }
        self._changes.wake_waiters()
        await self._statuses.write(plan, informers.projects.objects, self._groups.values(), nodes)
        if executor.refused:
            # No watch event may ever report that the decision has become possible.
            self._changes.schedule_retry()
        return executor.refused

    # -- inside ------------------------------------------------------------------------------------

    def _wake_at(self, when: float | None, now: float) -> None:
        """Run a cycle at `when`, even if nothing changes; it replaces the last call's `when`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if when is not None:
            wait_s = max(TRIES_AGAIN_IN_S, when - now)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_s, self._changes.unseen.set)

    def _nodes(self, pods: Iterable[Pod]) -> list[KubeNode]:
        """Return the nodes with the memory of their devices."""
        return self.sizes.apply_to(self._informers.nodes.objects.values(), pods)

    def _update_groups(self, now: float) -> tuple[list[Pod], list[PodGroup]]:
        """Drop nominations of pods that do not wait any more; return the pods and their groups."""
        storage, jobs = self._informers.storage, self._informers.jobs.by_uid()
        pods = [
            placed(pod, storage) if pod.claims and not pod.node else pod
            for pod in self._cache.pods()
        ]
        for uid, job in jobs.items():
            is_ours = job.template.scheduler == SCHEDULER
            if is_ours and any(pod.claims for pod in (job.template, *job.templates)):
                jobs[uid] = with_templates(job, partial(placed, storage=storage))
        groups = self._grouping.groups(
            pods,
            jobs,
            self._informers.namespaces.objects,
            self._cache.default_project,
            self._cache.assumed.drop_expired(jobs, now),
            lambda request: max_fitting_pods(request, self._informers.nodes.objects.values()) + 1,
        )
        waiting = {pod.place for group in groups for pod in group.pods if pod.may_be_nominated}
        nominations = self._cache.nominations.items()
        self._cache.nominations = {place: n for place, n in nominations if place in waiting}
        return pods, groups

    async def _reconcile_reservations(
        self, pods: Sequence[Pod], groups: Sequence[PodGroup]
    ) -> None:
        """Reconcile the reservation pods with the shared devices."""
        waiting = {pod.place: pod for group in groups for pod in group.pods if not pod.node}
        nodes = {node.name for node in self._informers.nodes.objects.values()}
        device_numbers = self._cache.device_ids.update(pods)
        await self.sharing.reconcile(pods, device_numbers, nodes, self._cache.nominations, waiting)
        if self.sharing.must_retry:
            self._changes.schedule_retry()

    def _absence_reason(self, workload: WorkloadId, worker: str) -> str:
        """Return why a worker that a decision names is not in the last snapshot."""
        if workload in self._groups:
            return f"{workload} has no worker {worker}"
        array, _index = split_id(workload) or ("", 0)
        for job in self._informers.jobs.by_uid().values():
            name = self._cache.id_of(job)
            if name != workload and not (job.is_array and name == array):
                continue
            if job.is_array and not job.is_finished and job.is_suspended == job.is_queued:
                return f"{workload} is not among the next elements of {name}"
            return f"{workload} is {'suspended' if job.is_suspended else 'finished'}"
        return f"there is no workload {workload}"

    def _track_incomplete_gangs(self, now: float) -> None:
        """Record since when running gangs lack workers (R11)."""
        below_min_since = {}
        for name, group in self._groups.items():
            if group.minimum == 1:
                continue  # most workloads: no need to count their pods
            running = sum(1 for pod in group.pods if pod.node and pod.deleted is None)
            if 0 < running < group.minimum:
                below_min_since[name] = self._below_min_since.get(name, now)
        self._below_min_since = below_min_since


def _waits_by_line(plan: Plan, groups: Mapping[WorkloadId, PodGroup]) -> dict[WorkloadId, Wait]:
    """Return a plan's waits as lists show them, with one line per array: its next element's.

    A position counts the lines ahead.
    """
    if all(group.array is None for group in groups.values()):
        return {wait.workload: wait for wait in plan.decisions if isinstance(wait, Wait)}
    waits: dict[WorkloadId, Wait] = {}
    positions = Counter[str]()
    for wait in plan.decisions:
        if not isinstance(wait, Wait):
            continue
        group, workload = groups.get(wait.workload), wait.workload
        if group is not None and group.array is not None and not group.has_begun:
            workload = workload.rpartition("-")[0]
            if workload in waits:
                continue
        project = workload.partition("/")[0]
        positions[project] += 1
        waits[workload] = replace(wait, workload=workload, position=positions[project])
    return waits
