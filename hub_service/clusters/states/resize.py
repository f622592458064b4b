"""Start an elastic worker again on more or fewer devices of its node (E2): a stop and a start.

Pure transitions of a row; `plans` begins one, `lifecycle` ends it when the worker is gone. It is
neither a pause nor a retry, and the devices that are to come stay held meanwhile. On Kubernetes
there are no rows, but the core is shown the same.
"""

from dataclasses import replace

from runai.hub_service.clusters.states.state import Ending, Grant, Row
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Worker, WorkerState, Workload


def grant_after(row: Row, ending: Ending) -> Grant | None:
    """Return what a worker that has just ended is to start again on; None: it is not.

    Exit code 0 is finished, and a worker that nobody told to stop has failed.
    """
    if row.resize is None or row.intent != "run" or ending.exit_code == 0 or ending.text:
        return None
    return row.resize


def without_resize(row: Row) -> Row:
    """Let a worker that was to start again only stop: its workload is paused after all."""
    return row if row.resize is None else replace(row, resize=None, halt=row.halt or "paused")


def for_core_while_resizing(drawn: Workload, row: Row) -> Workload:
    """Show a worker that is about to start again as running where it will, and what it leaves.

    So what it is to have is nobody else's, and what it leaves is free when its process is gone.
    """
    assert row.resize is not None
    devices = tuple(share.device for share in row.resize.devices)
    now = None if row.stopping_since is None else int(row.stopping_since)
    return shown_while_resizing(drawn, devices, now)


def shown_while_resizing(drawn: Workload, devices: tuple[int, ...], since: int | None) -> Workload:
    """Show one that stops to start again on these devices as if it ran on them, since then."""
    (worker,) = drawn.workers
    left = tuple(device for device in worker.devices if device not in devices)
    stays = replace(worker, state=WorkerState.RUNNING, devices=devices, started=since, gone_by=None)
    if not left:
        return replace(drawn, workers=(stays,))
    # Two workers have no sizes to be resized between (E2): until it has left, nothing changes.
    stays = replace(stays, gpus=MilliGpu(len(devices) * WHOLE_GPU))
    leaves = Worker(
        name=f"{worker.name} (leaving)",
        gpus=MilliGpu(len(left) * WHOLE_GPU),
        state=WorkerState.STOPPING,
        node=worker.node,
        devices=left,
        started=worker.started,
        gone_by=worker.gone_by,
    )
    return replace(drawn, workers=(stays, leaves), min_workers=1, gpus_min=None, gpus_max=None)


def coming(row: Row) -> tuple[DeviceShare, ...]:
    """Return the devices that a worker is to get and does not hold yet."""
    if row.resize is None:
        return ()
    held = {share.device for share in row.record.workers[row.resize.index].devices}
    return tuple(share for share in row.resize.devices if share.device not in held)
