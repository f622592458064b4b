"""Records of a job array: one for the elements that have not begun, and one for each other.

No API calls; records of unchanged elements are reused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from runai.hub_service.clusters.kubernetes.objects.array_elements import ArrayJob, element_moves
from runai.hub_service.clusters.kubernetes.objects.job_manifest import OWN_INDEX
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.workloads.workload_records import (
    ClusterState,
    Memo,
    as_state_reason,
    obstacle_to,
    record_of_worker,
    with_time_limit,
)
from runai.hub_service.model import arrays
from runai.hub_service.model.records import (
    Ranges,
    StateReason,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadState,
)

_STATES = {
    "starting": WorkloadState.STARTING,
    "running": WorkloadState.RUNNING,
    "stopping": WorkloadState.STOPPING,
}
_WAITING = (WorkloadState.QUEUED, WorkloadState.PAUSED)


class ArrayRecords:
    """Builder of arrays' records that reuses the object of an unchanged element."""

    def __init__(self) -> None:
        """Begin with no record built."""
        self._cache = Memo[WorkloadRecord]()

    def begin(self) -> None:
        """Start a new round."""
        self._cache.begin()

    def of(self, array: ArrayJob, cluster_state: ClusterState) -> Iterator[WorkloadRecord]:
        """Yield the records of an array; a deleted element has one until its pod is gone."""
        job = array.job
        assert job.spec is not None
        begun = set()
        places = (place.partition("/") for place in cluster_state.nominations)
        promised = {int(index) for uid, _, index in places if uid == job.uid}
        moves = element_moves(job)
        for index in sorted({*array.pods, *job.done, *job.paused, *promised}):
            pods = array.pods.get(index, ())
            is_deleted = _is_deleted(job, index)
            is_visible = index in promised or array.has_begun(index)
            if not (any(pod.uses_node for pod in pods) if is_deleted else is_visible):
                continue
            begun.add(index)
            seat, name = f"{job.uid}/{index}", arrays.element_id(job.spec.id, index)
            inputs = (
                pods,
                [cluster_state.devices.get(pod.uid) for pod in pods],
                cluster_state.nominations.get(seat),
                cluster_state.waits.get(name),
                cluster_state.stops.get(name),
                (index in job.completed, index in job.failed_indexes, is_deleted),
                (job.is_suspended, job.is_queued, job.outcome),
                job.paused.get(index),
                moves.get(index, ""),
                (cluster_state.numbers(seat), index in job.timed_out),
            )
            build = partial(_of_element, array, index, name, cluster_state, moves.get(index, ""))
            yield self._cache.get(seat, inputs, build)
        excluded = begun | job.deleted_elements
        left = arrays.without(((0, job.completions),), excluded)
        if left and job.deleted is None:
            yield _of_the_rest(job, left, cluster_state)


def element_of(rest: WorkloadRecord, index: int) -> WorkloadRecord:
    """Return the record of an element that has not begun."""
    spec = arrays.element(rest.spec, index)
    worker = WorkerRecord(f"{spec.id}-0", 0, "pending")
    return replace(rest, spec=spec, workers=(worker,), left=(), position=None)


def _of_the_rest(job: Job, left: Ranges, cluster_state: ClusterState) -> WorkloadRecord:
    assert job.spec is not None
    state = _state_without_pods(job, WorkloadState.QUEUED)
    wait = cluster_state.waits.get(job.spec.id) if state is WorkloadState.QUEUED else None
    return WorkloadRecord(
        job.spec,
        state,
        job.created,
        (),
        reason=_suspension(job, state) if wait is None else as_state_reason(wait.reason),
        position=None if wait is None else wait.position,
        left=left,
        uid=job.uid,
    )


def _of_element(
    array: ArrayJob, index: int, name: WorkloadId, cluster_state: ClusterState, moved: str
) -> WorkloadRecord:
    job, pods = array.job, array.pods.get(index, ())
    assert job.spec is not None
    spec = arrays.element(job.spec, index)
    pauses = job.paused.get(index, ())
    ended = [pod for pod in pods if pod.is_finished]
    worker = _worker(array, index, cluster_state)
    state = _state(array, index, worker)
    wait, stop = cluster_state.waits.get(name), cluster_state.stops.get(name)
    reason = _suspension(job, state)
    if _is_deleted(job, index):
        reason = StateReason("deleted", "deleted by its user")
    elif state is WorkloadState.SUCCEEDED:
        reason = StateReason("succeeded", "finished with exit code 0")
    elif state is WorkloadState.FAILED and worker.exit_code is not None:
        reason = StateReason("exit_code", f"ended with exit code {worker.exit_code}")
    elif state is WorkloadState.FAILED:
        reason = StateReason("failed", job.why)
    elif wait is not None and state in _WAITING:
        reason = as_state_reason(wait.reason)
    elif stop is not None and state in (WorkloadState.STOPPING, WorkloadState.PAUSED):
        reason = as_state_reason(stop.reason)
    starts = [pod.bound for pod in pods if pod.bound is not None]
    ends = [pod.ended for pod in ended if pod.ended is not None]
    record = WorkloadRecord(
        spec,
        state,
        job.created,
        (worker,),
        reason=reason or obstacle_to(state, pods),
        position=wait.position if wait is not None and state in _WAITING else None,
        started=min(starts, default=None),
        finished=max(ends, default=job.finished) if state.finished else None,
        attempts=worker.attempt,
        pauses=pauses,
        failures=min(sum(bool(pod.exit_code) for pod in ended), spec.backoff_limit + 1),
        exit_code=worker.exit_code if state.finished else None,
        checkpoint_dir=job.checkpoint_dir.replace(OWN_INDEX, str(index)),
        moved=moved,
        uid=job.uid,
    )
    return with_time_limit(record, cluster_state.numbers(f"{job.uid}/{index}"))


def _worker(array: ArrayJob, index: int, cluster_state: ClusterState) -> WorkerRecord:
    job, pod = array.job, array.of(index)
    assert job.spec is not None
    name = f"{arrays.element_id(job.spec.id, index)}-0"
    ran = [p for p in array.pods.get(index, ()) if p.bound is not None or p.node]
    attempt = max(len(ran) + len(job.paused.get(index, ())), index in job.paused)
    if pod is None or (pod.is_finished and job.is_suspended and not job.is_over(index)):
        if job.is_over(index):
            code = 0 if index in job.completed else None
            return WorkerRecord(name, 0, "finished", attempt=attempt, exit_code=code)
        pod = job.worker(index)
    seated = replace(pod, seat=f"{job.uid}/{index}")
    return record_of_worker(seated, name, 0, cluster_state, attempt=attempt)


def _state(array: ArrayJob, index: int, worker: WorkerRecord) -> WorkloadState:
    job = array.job
    if (state := _STATES.get(worker.state)) is not None:
        is_terminating = job.is_suspended or _is_deleted(job, index)
        return WorkloadState.STOPPING if is_terminating else state
    if index in job.completed or (worker.state == "finished" and worker.exit_code == 0):
        return WorkloadState.SUCCEEDED
    if index in job.failed_indexes:
        return WorkloadState.TIMED_OUT if index in job.timed_out else WorkloadState.FAILED
    waits = WorkloadState.PAUSED if index in job.paused else WorkloadState.QUEUED
    if worker.state == "finished":
        waits = WorkloadState.RETRYING
    return _state_without_pods(job, waits)


def _state_without_pods(job: Job, waits: WorkloadState) -> WorkloadState:
    if job.is_finished:
        return WorkloadState.FAILED
    return WorkloadState.SUSPENDED if job.is_suspended and not job.is_queued else waits


def _is_deleted(job: Job, index: int) -> bool:
    return index in job.deleted_elements or job.deleted is not None


def _suspension(job: Job, state: WorkloadState) -> StateReason | None:
    if state is not WorkloadState.SUSPENDED:
        return None
    return StateReason("suspended", f"suspended by {job.suspended_by or 'somebody'}")


def arrays_of(
    records: Mapping[WorkloadId, WorkloadRecord],
) -> dict[WorkloadId, Sequence[WorkloadRecord]]:
    """Return the records of each array: of its elements, and of those that have not begun."""
    found: dict[WorkloadId, list[WorkloadRecord]] = {}
    for record in records.values():
        if record.spec.array is not None:
            found.setdefault(arrays.array_id(record), []).append(record)
    return dict(found)
