"""Records of workloads for users: states, workers, outcomes.

Submitted workloads and foreign objects that name our scheduler are treated alike. No API calls;
unchanged records are reused.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from runai.hub_service.clusters.kubernetes.actions.node_backoff import rejection_of
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    GPU_TYPE_LABEL,
    SCHEDULER,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import accepted_values
from runai.hub_service.clusters.kubernetes.objects.pod_groups import name_of, project_of
from runai.hub_service.clusters.kubernetes.objects.run_time import TimeLimited
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import shares_of
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import NominatedPlacement
from runai.hub_service.model.records import (
    ElasticState,
    StateReason,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.model.time_limits import end_text
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Move, Reason, Resize, Stop, Wait
from runai.hub_service.scheduler.state.request_shape import NODE_TYPE_LABEL
from runai.hub_service.wire.amounts import MOST_WORKERS

T = TypeVar("T")


class Memo(Generic[T]):
    """Cache of built objects, each with its inputs."""

    def __init__(self) -> None:
        """Begin empty."""
        self._before: dict[str, tuple[object, T]] = {}
        self._now: dict[str, tuple[object, T]] = {}

    def begin(self) -> None:
        """Start a new round; entries not requested until the next round are dropped."""
        self._before, self._now = self._now, {}

    def get(self, key: str, inputs: object, draw: Callable[[], T]) -> T:
        """Return the previous object if its inputs are equal; else build it."""
        known = self._before.get(key)
        # Tuples compare identical items without calling `__eq__`.
        if known is None or known[0] != inputs:
            known = inputs, draw()
        self._now[key] = known
        return known[1]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All input of workload records."""

    pods: Collection[Pod]
    jobs: Mapping[str, Job]
    """By UID."""
    namespaces: Mapping[str, str]
    default_project: str
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Device numbers of pods, by UID."""
    nominations: Mapping[str, NominatedPlacement] = field(default_factory=dict)
    waits: Mapping[WorkloadId, Wait] = field(default_factory=dict)
    """Why workloads wait, by the last plan."""
    stops: Mapping[WorkloadId, Stop | Move | Resize] = field(default_factory=dict)
    """Why workloads were last stopped."""
    elastic: Mapping[str, ElasticState] = field(default_factory=dict)
    """States of elastic jobs, by the UIDs of their Jobs."""
    limited: Mapping[str, TimeLimited] = field(default_factory=dict)
    """Time limits and running times, by Job, element or pod (`run_time.timed`)."""

    def numbers(self, key: str) -> tuple[int, float, float | None] | None:
        """Return the time limit and running times of a Job, element or pod; None: no limit."""
        found = self.limited.get(key)
        return None if found is None else found.numbers


class RecordBuilder:
    """Builder of records that reuses the object of an unchanged workload."""

    def __init__(self) -> None:
        """Begin with no record built."""
        self._cache = Memo[_SortedRecord]()

    def records(self, cluster_state: ClusterState) -> dict[WorkloadId, WorkloadRecord]:
        """Return all workloads of our scheduler but arrays, oldest first; finished ones too."""
        self._cache.begin()
        pods: dict[str, list[Pod]] = {}
        entries: list[_SortedRecord] = []
        for pod in cluster_state.pods:
            if pod.scheduler != SCHEDULER or pod.is_reservation:
                continue
            job = cluster_state.jobs.get(pod.owner.uid) if pod.owner is not None else None
            if _is_left(pod) if job is None else job.is_array:
                continue
            if job is None or not job.is_whole:
                entries.append(self._of_pod(pod, cluster_state))
            else:
                pods.setdefault(job.uid, []).append(pod)
        promised = _by_job(cluster_state.nominations)
        entries += [
            self._of_job(job, pods.get(job.uid, ()), cluster_state, promised.get(job.uid))
            for job in cluster_state.jobs.values()
            if job.template.scheduler == SCHEDULER and job.is_whole
        ]
        return {one.record.id: one.record for one in sorted(entries, key=attrgetter("age"))}

    def _of_pod(self, pod: Pod, cluster_state: ClusterState) -> "_SortedRecord":
        project = project_of(pod, cluster_state.namespaces, cluster_state.default_project)
        inputs = (
            pod,
            project,
            cluster_state.devices.get(pod.uid),
            cluster_state.nominations.get(pod.place),
            cluster_state.waits.get(f"{project}/{name_of(pod)}"),
            cluster_state.numbers(pod.uid),
        )
        return self._cache.get(pod.uid, inputs, lambda: _sorted_record(_of_pod(pod, cluster_state)))

    def _of_job(
        self, job: Job, pods: Sequence[Pod], cluster_state: ClusterState, promised: object
    ) -> "_SortedRecord":
        project = project_of(job.template, cluster_state.namespaces, cluster_state.default_project)
        workload = f"{project}/{name_of(job)}"
        inputs = (
            # A Job's sentence is part of the record but not of its equality.
            id(job),
            job,
            pods,
            project,
            [cluster_state.devices.get(pod.uid) for pod in pods],
            promised,
            cluster_state.waits.get(workload),
            cluster_state.stops.get(workload),
            cluster_state.elastic.get(job.uid),
            cluster_state.numbers(job.uid),
        )
        return self._cache.get(
            job.uid, inputs, lambda: _sorted_record(record_of_job(job, pods, cluster_state))
        )


class _SortedRecord(NamedTuple):
    """A record and its sort key."""

    age: tuple[float, WorkloadId]
    record: WorkloadRecord


def _sorted_record(record: WorkloadRecord) -> _SortedRecord:
    return _SortedRecord((record.submitted, record.id), record)


def _is_left(pod: Pod) -> bool:
    """Return True if a pod holds nothing and its Job is gone or unseen.

    The control plane deletes a Job before its pods: pods that still run are listed until they end.
    A pod that a user keeps when deleting its Job has no owner any more.
    """
    return pod.owner is not None and pod.owner.is_job and not pod.uses_node


def _by_job(
    nominations: Mapping[str, NominatedPlacement],
) -> dict[str, dict[str, NominatedPlacement]]:
    """Return the nominated devices of Jobs' workers, by the Jobs' UIDs."""
    found: dict[str, dict[str, NominatedPlacement]] = {}
    for place, nomination in nominations.items():
        found.setdefault(place.partition("/")[0], {})[place] = nomination
    return found


def record_of_job(job: Job, pods: Sequence[Pod], cluster_state: ClusterState) -> WorkloadRecord:
    """Build the record of a Job and its pods."""
    project = project_of(job.template, cluster_state.namespaces, cluster_state.default_project)
    spec = job.spec or _spec_of(job.template, project, name_of(job), job)
    workers = tuple(_workers(job, pods, spec, cluster_state))
    state = _state_of_job(job, workers)
    starts = job.starts or tuple(sorted(p.bound for p in pods if p.bound is not None))[:1]
    wait = cluster_state.waits.get(spec.id) if state in _WAITS else None
    codes = [w.exit_code for w in workers if w.exit_code is not None]
    record = WorkloadRecord(
        spec,
        state,
        job.created,
        workers,
        reason=_outcome(job, workers)
        if job.is_finished
        else _reason(job, state, wait, cluster_state.stops.get(spec.id))
        or obstacle_to(state, pods),
        position=None if wait is None else wait.position,
        started=starts[0] if starts else None,
        finished=job.finished,
        attempts=len(starts),
        pauses=job.pauses,
        failures=_failures(job),
        exit_code=_exit_code_of_job(job, codes),
        checkpoint_dir=job.checkpoint_dir,
        elastic=cluster_state.elastic.get(job.uid),
        moved=job.moved,
        killed=job.spec is not None and _was_killed(job, pods),
        uid=job.uid,
    )
    return with_time_limit(record, cluster_state.numbers(job.uid))


def with_time_limit(
    record: WorkloadRecord, numbers: tuple[int, float, float | None] | None
) -> WorkloadRecord:
    """Return a record with its limit, running time, and the reason if it ran its time out."""
    if numbers is not None:
        limit, ran, since = numbers
        spec = replace(record.spec, max_runtime=limit)
        record = replace(record, spec=spec, ran_s=ran, runs_since=since)
    if record.state is WorkloadState.TIMED_OUT:
        record = replace(record, reason=StateReason("timed_out", end_text(record)))
    return record


def _was_killed(job: Job, pods: Iterable[Pod]) -> bool:
    """Return True if its last stop, since its last start, killed a pod after its grace."""
    ends = (pod.ended or 0.0 for pod in pods if pod.is_killed)  # not noted on the Job yet
    killed = max((*job.killed, *ends), default=0.0)  # in whole seconds, unlike starts and pauses
    return killed > max(job.starts, default=0.0) and killed >= int(max(job.pauses, default=0.0))


_WAITS = (WorkloadState.QUEUED, WorkloadState.PAUSED)
_STOPPED = (137, 143)
"""Exit codes of processes stopped by SIGKILL or SIGTERM."""


def _state_of_job(job: Job, workers: Sequence[WorkerRecord]) -> WorkloadState:
    active = {worker.state for worker in workers} & {"starting", "running", "stopping"}
    if active:
        is_terminating = job.deleted is not None or job.is_suspended or active == {"stopping"}
        up = WorkloadState.RUNNING if "running" in active else WorkloadState.STARTING
        return WorkloadState.STOPPING if is_terminating else up
    if job.outcome:
        failed = WorkloadState.TIMED_OUT if 0 in job.timed_out else WorkloadState.FAILED
        return WorkloadState.SUCCEEDED if job.outcome == "Complete" else failed
    if job.is_suspended and not job.is_queued:
        return WorkloadState.SUSPENDED
    if job.failed and not job.is_queued:
        return WorkloadState.RETRYING
    return WorkloadState.PAUSED if job.starts or job.pauses else WorkloadState.QUEUED


def _reason(
    job: Job, state: WorkloadState, wait: Wait | None, stop: Stop | Move | Resize | None
) -> StateReason | None:
    if wait is not None:
        return as_state_reason(wait.reason)
    if state is WorkloadState.SUSPENDED:
        return StateReason("suspended", f"suspended by {job.suspended_by or 'somebody'}")
    if stop is not None and state in (WorkloadState.STOPPING, WorkloadState.PAUSED):
        return as_state_reason(stop.reason)
    if job.is_queued and state in (*_WAITS, WorkloadState.STOPPING) and job.starts:
        return StateReason("held", job.template.sentence)
    return None


def obstacle_to(state: WorkloadState, pods: Iterable[Pod]) -> StateReason | None:
    """Return why the containers of a workload's bound pods do not run."""
    if state is not WorkloadState.STARTING:
        return None
    found = (pod.obstacle for pod in pods if pod.uses_node and pod.obstacle)
    return next((StateReason("not_running", text) for text in found), None)


def _failures(job: Job) -> int:
    """Return the number of failures; Kubernetes also counts pods that it stops after one failed."""
    failed = max(job.failed, job.outcome == "Failed")
    return failed if job.spec is None else min(failed, job.spec.backoff_limit + 1)


def _outcome(job: Job, workers: Sequence[WorkerRecord]) -> StateReason:
    if job.outcome == "Complete":
        return StateReason("succeeded", "finished with exit code 0")
    # Kubernetes stops the other workers when the first has failed.
    ended = sorted((w for w in workers if w.exit_code), key=lambda w: w.exit_code in _STOPPED)
    if not ended:
        return StateReason("failed", job.why)
    name = f"worker {ended[0].index} " if len(workers) > 1 else ""
    return StateReason("exit_code", f"{name}ended with exit code {ended[0].exit_code}")


def as_state_reason(why: Reason) -> StateReason:
    """Return a decision's reason as that of a state."""
    return StateReason(why.code, why.text, why.rule, why.for_ or "")


def _workers(
    job: Job, pods: Iterable[Pod], spec: WorkloadSpec, cluster_state: ClusterState
) -> Iterable[WorkerRecord]:
    ordered = sorted(pods, key=lambda pod: (pod.created, pod.name))
    latest: dict[int, Pod] = {}
    if job.is_suspended and not job.is_finished:
        ordered = [p for p in ordered if not p.is_finished or p.index in job.done]
    for position, pod in enumerate(ordered):
        index = pod.index if job.runs_at_once and pod.index is not None else None
        if index is None:
            index = 0 if job.parallelism <= 1 else position
        before = latest.get(index)
        if before is None or before.is_finished or not before.node:
            latest[index] = pod
    # Surplus workers of a scaled-down elastic Job are listed while they hold devices.
    last = max((i for i, pod in latest.items() if job.is_elastic and pod.uses_node), default=0)
    for index in range(max(spec.workers, last + 1)):
        name = f"{spec.id}-{index}"
        here = latest.get(index)
        if here is None:
            nomination = cluster_state.nominations.get(f"{job.uid}/{index}")
            done = job.is_finished or index in job.done
            yield WorkerRecord(
                name,
                index,
                "finished" if done else "pending" if nomination is None else "reserved",
                node="" if nomination is None else nomination.node,
                devices=() if nomination is None else _shares(nomination.devices, nomination.gpus),
                attempt=len(job.starts),
                exit_code=0 if index in job.completed else None,
            )
        else:
            # Nominated devices belong to the worker, whichever pod it has.
            here = replace(here, seat=f"{job.uid}/{index}")
            attempt = max(1, len(job.starts))
            yield record_of_worker(here, name, index, cluster_state, attempt=attempt)


def record_of_worker(
    pod: Pod, name: str, index: int, cluster_state: ClusterState, *, attempt: int
) -> WorkerRecord:
    """Build the record of a worker with a pod."""
    if pod.is_finished:  # its annotations still name devices that it does not hold any more
        return WorkerRecord(
            name, index, "finished", started=pod.bound, attempt=attempt, exit_code=pod.exit_code
        )
    devices, node = shares_of(pod, cluster_state.devices.get(pod.uid, ())), pod.node
    nomination = cluster_state.nominations.get(pod.place)
    if not pod.node and nomination is not None:
        devices, node = _shares(nomination.devices, nomination.gpus), nomination.node
    if not pod.node:
        state = "pending" if nomination is None else "reserved"
    elif pod.deleted is not None:
        state = "stopping"
    else:
        state = "running" if pod.is_up else "starting"
    return WorkerRecord(
        name,
        index,
        state,  # type: ignore[arg-type]
        node=node,
        devices=devices,
        started=pod.bound,
        attempt=attempt,
    )


def _shares(devices: Iterable[int], gpus: MilliGpu) -> tuple[DeviceShare, ...]:
    return tuple(DeviceShare(device, gpus) for device in devices)


def _of_pod(pod: Pod, cluster_state: ClusterState) -> WorkloadRecord:
    """Build the record of a single pod, such as a notebook server."""
    project = project_of(pod, cluster_state.namespaces, cluster_state.default_project)
    spec = _spec_of(pod, project, name_of(pod), None)
    worker = record_of_worker(pod, f"{spec.id}-0", 0, cluster_state, attempt=1 if pod.node else 0)
    states = {
        "pending": WorkloadState.QUEUED,
        "reserved": WorkloadState.QUEUED,
        "starting": WorkloadState.STARTING,
        "running": WorkloadState.RUNNING,
        "stopping": WorkloadState.STOPPING,
    }
    state = states.get(worker.state, WorkloadState.ENDED)
    if worker.state == "finished" and spec.kind == "job":
        state = WorkloadState.FAILED if pod.exit_code or pod.why else WorkloadState.SUCCEEDED
    wait = cluster_state.waits.get(spec.id) if state in _WAITS else None
    refusal = rejection_of(pod)
    reason = StateReason("turned_away", refusal) if refusal else obstacle_to(state, [pod])
    record = WorkloadRecord(
        spec,
        state,
        pod.created,
        (worker,),
        reason=reason if wait is None else as_state_reason(wait.reason),
        position=None if wait is None else wait.position,
        started=pod.bound,
        attempts=1 if pod.node else 0,
        exit_code=pod.exit_code,
        uid=pod.uid,
    )
    return with_time_limit(record, cluster_state.numbers(pod.uid))


def _spec_of(pod: Pod, project: str, name: str, job: Job | None) -> WorkloadSpec:
    """Return a WorkloadSpec for a Job or pod that was not submitted through us."""
    workers = 1 if job is None else min(max(1, job.parallelism), MOST_WORKERS)
    request = pod.device_request
    node_types = accepted_values(pod.demands, NODE_TYPE_LABEL)
    return WorkloadSpec(
        project=project,
        name=name,
        user=pod.user,
        kind="job" if pod.kind == "train" else "session",
        command=None,
        gpus=MilliGpu(pod.gpus * WHOLE_GPU) if request is None else request.gpus,
        gpu_memory_mib=0 if request is None else request.mib,
        cpu_milli=pod.cpu_milli,
        memory_mib=pod.memory_mib,
        elastic=pod.may_be_resized,
        saves=pod.saves,
        guaranteed_workers=pod.guaranteed if job is not None and job.may_be_guaranteed else None,
        gpus_max=MilliGpu(0 if request is None else request.most * WHOLE_GPU),
        workers=workers,
        min_workers=workers if job is None else min(job.minimum, workers),
        preemptible=pod.kind == "train",
        priority=pod.priority,
        server=pod.server,
        node_type=node_types[0] if len(node_types) == 1 else "",
        gpu_types=accepted_values(pod.demands, GPU_TYPE_LABEL),
    )


def _exit_code_of_job(job: Job, codes: Sequence[int]) -> int | None:
    if not job.is_finished:
        return None
    # Workers of an elastic job may have left before its end.
    return 0 if job.is_elastic and job.outcome == "Complete" else _exit_code(codes)


def _exit_code(codes: Sequence[int]) -> int | None:
    return next((code for code in codes if code), 0 if codes else None)
