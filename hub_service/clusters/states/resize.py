"""Resize of an elastic worker: stop, and restart on the node's other devices (E2).

Pure transitions of a row. A resize is neither a pause nor a retry, and the new devices stay
reserved meanwhile. Kubernetes has no rows, but builds the same snapshot.
"""

from dataclasses import replace

from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import Grant, WorkloadRecord
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Worker, WorkerState, Workload


def grant_after(row: WorkloadRecord, exit_status: ExitStatus) -> Grant | None:
    """Return the devices for a worker's restart after its exit; None without a restart.

    Exit code 0 is success, and a worker that exits without a stop has failed.
    """
    if row.resize is None or row.intent != "run" or exit_status.exit_code == 0 or exit_status.text:
        return None
    return row.resize


def without_resize(row: WorkloadRecord) -> WorkloadRecord:
    """Cancel a resize: the worker only stops, and its workload is paused."""
    return row if row.resize is None else replace(row, resize=None, halt=row.halt or "paused")


def workload_while_resizing(workload: Workload, row: WorkloadRecord) -> Workload:
    """Return a resize's snapshot: the worker runs on its new devices, and leaves the rest.

    The new devices are taken at once, the old ones are free when the process is gone.
    """
    assert row.resize is not None
    devices = tuple(share.device for share in row.resize.devices)
    now = None if row.stopping_since is None else int(row.stopping_since)
    return as_if_resized(workload, devices, now)


def as_if_resized(workload: Workload, devices: tuple[int, ...], since: int | None) -> Workload:
    """Return a stopping worker as if it ran on its new devices `since` then."""
    (worker,) = workload.workers
    surplus = tuple(device for device in worker.devices if device not in devices)
    resized = replace(
        worker, state=WorkerState.RUNNING, devices=devices, started=since, gone_by=None
    )
    if not surplus:
        return replace(workload, workers=(resized,))
    # With two workers the scheduler plans no resize (E2) until one of them is gone.
    resized = replace(resized, gpus=MilliGpu(len(devices) * WHOLE_GPU))
    releasing = Worker(
        name=f"{worker.name} (leaving)",
        gpus=MilliGpu(len(surplus) * WHOLE_GPU),
        state=WorkerState.STOPPING,
        node=worker.node,
        devices=surplus,
        started=worker.started,
        gone_by=worker.gone_by,
    )
    return replace(
        workload, workers=(resized, releasing), min_workers=1, gpus_min=None, gpus_max=None
    )


def incoming_devices(row: WorkloadRecord) -> tuple[DeviceShare, ...]:
    """Return the devices that a worker will get and does not hold yet."""
    if row.resize is None:
        return ()
    allocated = {share.device for share in row.workers[row.resize.index].devices}
    return tuple(share for share in row.resize.devices if share.device not in allocated)
