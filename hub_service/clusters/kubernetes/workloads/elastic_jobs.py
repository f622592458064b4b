"""Elastic jobs of several workers: target members, reported progress, data for the core.

A job's state is written to an annotation of its Job before any worker is notified. Workers report
their progress again after a restart, so it is kept only in memory. `membership` decides on changes,
as on one machine.
"""

import asyncio
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.pod_conditions import create_event
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import ELASTIC, Job, elastic_text
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import ElasticShape
from runai.hub_service.clusters.kubernetes.workloads.workload_records import (
    ClusterState,
    record_of_job,
)
from runai.hub_service.clusters.states import membership
from runai.hub_service.clusters.states.membership import throughput_for_core
from runai.hub_service.model.records import (
    ACTIVE,
    ElasticRules,
    ElasticState,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
)
from runai.hub_service.scheduler.model.snapshot import Move, Plan, Start, Stop
from runai.hub_service.wire.elastic_messages import WorkerPhase, WorkerStatus

LEFT = 143
"""Exit code of a pod that left a running job: no failure to its Job."""
COMES_UP_WITHIN_S = 60.0
"""Running workers wait this long for workers bound with them: pulling large images takes time."""
FIRST_PORT, PORTS = 10_000, 20_000
"""Each generation has a port of its own, below the systems' ephemeral ports."""


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """An elastic job: its Job, record and pod addresses."""

    job: Job
    record: WorkloadRecord
    addresses: Mapping[str, str]
    """Addresses of the workers' pods, by worker name."""


def elastic_jobs(cluster_state: ClusterState) -> Mapping[WorkloadId, ElasticJob]:
    """Return the unfinished elastic jobs."""
    pods: dict[str, list[Pod]] = {
        uid: [] for uid, job in cluster_state.jobs.items() if job.is_elastic and not job.is_finished
    }
    for pod in cluster_state.pods if pods else ():
        if pod.owner is not None and pod.owner.uid in pods:
            pods[pod.owner.uid].append(pod)
    jobs = {}
    for uid, of_job in pods.items():
        record = record_of_job(cluster_state.jobs[uid], of_job, cluster_state)
        addresses = {f"{record.id}-{pod.index}": pod.address for pod in of_job if pod.uses_node}
        jobs[record.id] = ElasticJob(cluster_state.jobs[uid], record, addresses)
    return jobs


class ElasticJobs:
    """States of the elastic jobs of one cluster."""

    def __init__(self, api: Api, apply: Callable[[Object], None], rules: ElasticRules) -> None:
        """Begin with the states stored on the Jobs; `apply` receives each changed Job."""
        self._api = api
        self._apply = apply
        self.rules = rules
        self._states: dict[str, ElasticState] = {}
        """States newer than those on the Jobs, by UID."""
        self._finished_workers: dict[str, set[str]] = {}
        """Workers that ended with 0, by the UIDs of their Jobs."""
        self._lock = asyncio.Lock()
        """Lock held from reading a state until its consequences are written. Without it, scheduling
        cycles, scale requests and ending workers would overwrite each other's changes.
        """
        self.failed = False
        """True if a state could not be written in the last `reconcile`."""

    def state_of(self, job: Job) -> ElasticState | None:
        """Return the state of an elastic job; None: not elastic.

        Elastic jobs of a single process are included.
        """
        return self._states.get(job.uid, job.elastic) if job.is_elastic else job.elastic

    def shape(self, elastic_job: ElasticJob, now: float) -> ElasticShape:
        """Return the properties of an elastic job for the core."""
        state, record = elastic_job.record.elastic, elastic_job.record
        assert state is not None
        must_not_grow = bool(state.finishers) or membership.must_not_grow(record, now, self.rules)
        up = [worker for worker in record.workers if _is_up(worker)]
        most = membership.max_gpus_of(record)
        since = [int(worker.started) for worker in up if worker.started is not None]
        return ElasticShape(
            surplus=not must_not_grow,
            excluded_workers={
                worker
                for worker, times in state.losses.items()
                if times > membership.MAX_WORKER_LOSSES
            },
            throughput=throughput_for_core(state.throughput, most, pays_from=self.rules.pays_from),
            # A worker that reports its phase saves a checkpoint when it is stopped.
            checkpointed=max(since, default=None) if state.phases else None,
            saves=state.saves,
        )

    async def reconcile(
        self, read_jobs: Callable[[], Mapping[WorkloadId, ElasticJob]], now: float
    ) -> Mapping[WorkloadId, ElasticJob]:
        """Reconcile the targets with the workers; return the jobs afterwards."""
        self.failed = False
        async with self._lock:
            jobs = read_jobs()
            for elastic_job in jobs.values():
                await self._update_target(elastic_job, now, ())
            uids = {elastic_job.job.uid for elastic_job in jobs.values()}
            self._states = {uid: state for uid, state in self._states.items() if uid in uids}
            self._finished_workers = {
                uid: n for uid, n in self._finished_workers.items() if uid in uids
            }
            return read_jobs() if jobs else jobs

    async def prepare(
        self, plan: Plan, read_jobs: Callable[[], Mapping[WorkloadId, ElasticJob]], now: float
    ) -> None:
        """Notify workers before a plan stops them, and record the resize of their jobs."""
        if changing := [d for d in plan.decisions if isinstance(d, Start | Stop | Move)]:
            async with self._lock:
                await self._prepare(changing, read_jobs, now)

    async def shrink(
        self, read_job: Callable[[], ElasticJob | None], terminating: Collection[str], now: float
    ) -> None:
        """Notify a job's workers that `terminating` will stop, before they are stopped."""
        async with self._lock:
            if (elastic_job := read_job()) is None:
                return
            record = elastic_job.record
            assert record.elastic is not None
            state = self._states[elastic_job.job.uid] = replace(record.elastic, sized=now)
            if terminating:
                elastic_job = replace(elastic_job, record=replace(record, elastic=state))
                await self._update_target(elastic_job, now, terminating)

    def apply_status(self, elastic_job: ElasticJob, worker: str, status: WorkerStatus) -> bool:
        """Apply a worker's status; return True if the state changed."""
        before = elastic_job.record.elastic
        step = membership.apply_statuses(elastic_job.record, {worker: status})
        assert step.row is not None
        state = step.row.elastic
        assert state is not None
        self._states[elastic_job.job.uid] = state
        return state != before

    async def ended(
        self, read_job: Callable[[], ElasticJob | None], worker: str, exit_code: int
    ) -> int | None:
        """Return the exit code for an ended worker's pod; None: its job is gone.

        Only the last of the workers that finish together ends with 0: this completes the Job, and
        Kubernetes stops the remaining pods. A loss that the other workers survive is no failure.
        """
        async with self._lock:
            job = read_job()
            return None if job is None else await self._ended(job, worker, exit_code)

    # -- inside ------------------------------------------------------------------------------------

    async def _prepare(
        self,
        changing: Sequence[Start | Stop | Move],
        read_jobs: Callable[[], Mapping[WorkloadId, ElasticJob]],
        now: float,
    ) -> None:
        """Notify the workers of jobs that lose some, and set the time of the resize."""
        jobs = read_jobs()
        terminating: dict[WorkloadId, set[str]] = {}
        for decision in changing:
            if (elastic_job := jobs.get(decision.workload)) is None:
                continue
            state = elastic_job.record.elastic
            assert state is not None
            self._states[elastic_job.job.uid] = replace(state, sized=now)
            if not isinstance(decision, Start):
                terminating.setdefault(decision.workload, set()).add(decision.worker)
        jobs = read_jobs() if terminating else {}
        for name, workers in terminating.items():
            await self._update_target(jobs[name], now, workers)

    async def _ended(self, elastic_job: ElasticJob, worker: str, exit_code: int) -> int:
        """Return the exit code for an ended worker's pod; record a finish or a survived loss."""
        state = elastic_job.record.elastic
        assert state is not None
        row = replace(elastic_job.record, halt="done" if state.finishers else "")
        index = next(w.index for w in elastic_job.record.workers if w.name == worker)
        if exit_code == LEFT:
            return LEFT
        if exit_code == 0:
            finished = self._finished_workers.setdefault(elastic_job.job.uid, set())
            finished.add(worker)
            if membership.is_done_by(row, index):
                row = membership.record_finishers(row)
                await self._write_or_raise(elastic_job, row)
            assert row.elastic is not None
            finishers = row.elastic.finishers or [w.name for w in row.active]
            unfinished = {w.name for w in row.active if w.name in finishers} - finished
            return LEFT if unfinished else 0
        if membership.survives_exit_of(row, index):
            await self._write_or_raise(elastic_job, membership.requeue_lost_worker(row, index))
            return LEFT
        return exit_code if membership.decides_outcome(row, row.workers[index]) else LEFT

    async def _update_target(
        self, elastic_job: ElasticJob, now: float, terminating: Collection[str]
    ) -> None:
        """Write the target that fits the running workers, unless more are about to come up."""
        state, record = elastic_job.record.elastic, elastic_job.record
        assert state is not None
        if state.finishers:
            all_ended = not any(worker.state in ACTIVE for worker in record.workers)
            if all_ended and not any(worker.exit_code == 0 for worker in record.workers):
                # All workers have left and none ended with 0: the job goes on from its checkpoint.
                # Otherwise its Job is about to be complete, and no worker is notified.
                state = replace(state, finishers=())
            await self._write(elastic_job, state)
            return
        state = replace(state, phases=_reported_phases(record, state))
        workers = tuple(_as_member(worker, terminating, state) for worker in record.workers)
        row = replace(record, workers=workers, elastic=state)
        if _waits_for_workers(elastic_job, row, terminating, now):
            await self._write(elastic_job, state)
            return

        def store_of(first: str) -> str:
            """Return the store address at the first rank; "" before its pod has an address."""
            if not (host := elastic_job.addresses.get(first, "")):
                return ""
            gen = state.target.gen + 1 if state.target is not None else 1
            port = FIRST_PORT + zlib.crc32(f"{elastic_job.job.uid}/{gen}".encode()) % PORTS
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

        step = membership.update_target(row, now, store_of)
        assert step.row is not None
        after = step.row.elastic
        assert after is not None
        if await self._write(elastic_job, after):
            for _kind, text in step.events:
                with suppress(ApiError):
                    await create_event(self._api, elastic_job.job, "Resized", text)

    async def _write_or_raise(self, elastic_job: ElasticJob, row: WorkloadRecord) -> None:
        """Write a state that must survive a restart, before any worker acts on it.

        Raises:
            ApiError: the state could not be written.
        """
        assert row.elastic is not None
        await self._change(elastic_job, row.elastic)

    async def _write(self, elastic_job: ElasticJob, state: ElasticState) -> bool:
        """Write a state if it changed; return False if that failed."""
        try:
            await self._change(elastic_job, state)
        except ApiError:
            self.failed = True  # retried in the next cycle
            return False
        return True

    async def _change(self, elastic_job: ElasticJob, state: ElasticState) -> None:
        """Store a state on the Job if that part changed; keep what workers reported meanwhile."""
        job, before = elastic_job.job, elastic_job.record.elastic
        if _stored(state) != _stored(job.elastic):
            body = {"metadata": {"uid": job.uid, "annotations": {ELASTIC: elastic_text(state)}}}
            self._apply(await self._api.patch(job.path, body))
        # Workers may have reported since the job was read; the last report of an ended worker is
        # not repeated, so keep these fields.
        current = self._states.get(job.uid, before)
        reported = {f: getattr(current, f) for f in _REPORTED}
        changed = {f: value for f, value in reported.items() if value != getattr(before, f)}
        self._states[job.uid] = replace(state, **changed)


_REPORTED = ("phases", "throughput", "global_batch", "steps", "saves")
"""Fields of a state that workers report."""


def _is_up(worker: WorkerRecord) -> bool:
    return worker.state in {"starting", "running"}


def _reported_phases(record: WorkloadRecord, state: ElasticState) -> Mapping[str, WorkerPhase]:
    """Return the phases of active workers; a worker's next pod must report anew."""
    there = {worker.name for worker in record.workers if worker.state in ACTIVE}
    return {name: phase for name, phase in state.phases.items() if name in there}


def _as_member(
    worker: WorkerRecord, terminating: Collection[str], state: ElasticState
) -> WorkerRecord:
    """Return a worker as membership counts it: `terminating` stops, a starting pod is pending.

    A worker that has reported is running, even if the informer does not show its pod so yet.
    """
    if worker.state == "starting":
        worker = replace(worker, state="running" if worker.name in state.phases else "pending")
    is_stopping = worker.name in terminating and _is_up(worker)
    return replace(worker, state="stopping") if is_stopping else worker


def _waits_for_workers(
    elastic_job: ElasticJob, row: WorkloadRecord, terminating: Collection[str], now: float
) -> bool:
    """Return True if a starting job waits for more of its workers to come up."""
    state = row.elastic
    assert state is not None
    ranks = state.target.ranks if state.target is not None else ()
    running = {worker.name for worker in row.workers if worker.state == "running"}
    if running & set(ranks) or (ranks and not running):
        return False
    if len(running) < elastic_job.record.spec.min_workers:
        return True
    awaited = {w.name for w in elastic_job.record.workers if w.state in {"starting", "reserved"}}
    awaited -= running.union(terminating)
    starting = [worker for worker in elastic_job.record.workers if worker.name in awaited]
    since = [*elastic_job.job.starts[-1:], *(w.started for w in starting if w.started is not None)]
    return bool(starting) and now < max(since, default=now) + COMES_UP_WITHIN_S


def _stored(state: ElasticState | None) -> ElasticState:
    """Return the part of a state that is stored on the Job: all but the phases."""
    return replace(state or ElasticState(), phases={})
