"""A job in the simulated cluster: its workers, speed, remaining work and pauses.

All amounts are integers, so that a job's end does not depend on the number of updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Worker, WorkerState, Workload
from runai.hub_service.simulation.traces import TraceRow

PERMILLE = 1000
"""Speed of one worker's GPU; work is counted in thousandths."""


class SimulatedJob:
    """One job, from its submission to its end. Amounts in milli-GPU, times in seconds."""

    __slots__ = (
        "allocated",
        "allocated_s",
        "allocations",
        "beyond",
        "ends",
        "is_sized",
        "largest",
        "minimum",
        "name",
        "overhead",
        "pauses",
        "ran_s",
        "request",
        "row",
        "running",
        "since",
        "size",
        "template",
        "version",
        "work",
        "workers",
    )

    def __init__(self, row: TraceRow, node_gpus: int, beyond: int) -> None:
        """Divide a row into workers for nodes with `node_gpus` GPUs.

        `beyond` is the speed of each elastic worker above the request, in thousandths.
        """
        self.row = row
        self.name = row.job
        self.template = template = (
            _request_from_columns(row, node_gpus)
            if row.request is None
            else _request_with_row_name(row)
        )
        """The scheduler's view of the job without allocations."""
        self.is_sized = template.gpus_max is not None
        """Whether it is one worker with a variable number of GPUs (E2)."""
        self.workers = list(template.workers)
        requested = [_requested_milli(worker) for worker in template.workers]
        min_gpus = template.gpus_min if self.is_sized else None
        self.request = len(requested)
        """Number of workers (or GPUs, if sized) with which it takes exactly its duration."""
        if self.is_sized or row.is_elastic:
            self.request = (requested[0] if self.is_sized else row.gpus) // WHOLE_GPU
        self.minimum = template.minimum
        self.beyond = beyond
        self.size = min_gpus or sum(requested[: self.minimum])
        """Minimum allocation to run, in milli-GPU."""
        self.largest = min_gpus or max(worker.gpus for worker in template.workers)
        """Minimum allocation on a single node, in milli-GPU."""
        self.work = row.duration_s * self.request * PERMILLE
        self.overhead = 0
        """Seconds to read its checkpoint at the start of its next run."""
        self.running = 0
        self.allocations = [0] * len(requested)
        """Allocation of each running worker, in milli-GPU."""
        self.allocated = 0
        self.since = 0
        """Time of the last update of its progress."""
        self.allocated_s = 0
        """Measured milli-GPU-seconds since it last started from zero."""
        self.ran_s = 0
        """Seconds with its minimum running; the rest of its time it waited."""
        self.version = 0
        self.ends = -1
        self.pauses: tuple[int, ...] = ()

    @property
    def is_up(self) -> bool:
        """Whether its minimum runs, so that it makes progress."""
        return self.running >= self.minimum

    @property
    def speed(self) -> int:
        """Work per second; at the requested size it is `request` times PERMILLE."""
        if not self.is_up:
            return 0
        active = self.allocated // WHOLE_GPU if self.is_sized else self.running
        return PERMILLE * min(active, self.request) + self.beyond * max(0, active - self.request)

    def advance(self, now: int) -> int:
        """Update the progress to `now`; return the seconds spent on reading a checkpoint."""
        passed, self.since = now - self.since, now
        if passed <= 0 or not self.is_up:
            return 0
        self.ran_s += passed
        spent = min(passed, self.overhead)
        self.overhead -= spent
        self.work -= (passed - spent) * self.speed
        return spent

    def end(self, now: int) -> int:
        """Return the end time if nothing changes."""
        return now + self.overhead + -(-self.work // self.speed)

    def start_over(self) -> None:
        """Discard all progress, since there is no checkpoint."""
        self.work = self.row.duration_s * self.request * PERMILLE

    # ---- its workers in the scheduler's view

    def place(
        self, index: int, state: WorkerState, node: str, devices: Sequence[DeviceShare], now: int
    ) -> None:
        """Place a worker on devices, running or reserved."""
        is_running = state is WorkerState.RUNNING
        self.running += is_running - (self.workers[index].state is WorkerState.RUNNING)
        self._set_allocation(index, sum(share.gpus for share in devices) if is_running else 0)
        self.workers[index] = replace(
            self.template.workers[index],
            state=state,
            node=node,
            devices=tuple(share.device for share in devices),
            started=now if is_running else None,
        )

    def release(self, index: int) -> None:
        """Release a worker's devices; it waits again."""
        self.running -= self.workers[index].state is WorkerState.RUNNING
        self._set_allocation(index, 0)
        self.workers[index] = self.template.workers[index]

    def _set_allocation(self, index: int, milli: int) -> None:
        self.allocated += milli - self.allocations[index]
        self.allocations[index] = milli

    def index_of(self, worker: str) -> int:
        """Return a worker's index by its name."""
        return int(worker.rpartition("-")[2])

    def workload(self, project: str, *, is_plain: bool) -> Workload:
        """Build the scheduler's view; a plain queue has neither kinds nor priorities."""
        view = replace(
            self.template, project=project, workers=tuple(self.workers), pauses=self.pauses
        )
        if is_plain:
            return replace(
                view, kind="job", preemptible=None, priority=None, checkpointed=None, saves=False
            )
        return replace(view, checkpointed=self._checkpointed())

    def _checkpointed(self) -> int | None:
        """Return since when its work may be unsaved; None without checkpoints or before a start.

        A job with checkpoints saves one at each stop, which the scheduler learns only afterwards.
        """
        if self.template.checkpointed is None:
            return None
        return max((w.started for w in self.workers if w.started is not None), default=None)


def _requested_milli(worker: Worker) -> int:
    """Return its milli-GPU; a request in memory counts as a whole device."""
    if worker.gpus >= WHOLE_GPU:
        return worker.gpus
    return (worker.gpus or WHOLE_GPU) * worker.devices_wanted


def _request_with_row_name(row: TraceRow) -> Workload:
    """Return a row's request under the row's name, which breaks ties."""
    assert row.request is not None
    workers = enumerate(row.request.workers)
    return replace(
        row.request,
        name=row.job,
        submitted=row.submit_s,
        workers=tuple(replace(worker, name=f"{row.job}-{n}") for n, worker in workers),
    )


def _request_from_columns(row: TraceRow, node_gpus: int) -> Workload:
    """Build the request from a row's columns."""
    count, milli = _worker_sizes(row, node_gpus)
    return Workload(
        name=row.job,
        project=row.project,
        workers=tuple(
            Worker(
                name=f"{row.job}-{n}",
                gpus=MilliGpu(milli),
                gpu_memory_mib=None if row.gpu_memory_mib is None else Mib(row.gpu_memory_mib),
                cpu_milli=row.cpu_milli,
                memory_mib=Mib(row.memory_mib),
                gpu_types=(row.gpu_type,) if row.gpu_type else (),
            )
            for n in range(count)
        ),
        user=row.user,
        kind=row.kind,
        priority=row.priority,
        submitted=row.submit_s,
        min_workers=(row.min_workers or 1) if row.is_elastic else count,
        checkpointed=None if row.checkpoint_cost_s is None else 0,
        saves=row.checkpoint_cost_s is not None,
    )


def _worker_sizes(row: TraceRow, node_gpus: int) -> tuple[int, int]:
    """Return the number of workers and the milli-GPU of each."""
    whole = row.gpus // WHOLE_GPU
    if row.gpu_memory_mib is not None:
        return row.workers or 1, 0
    if row.is_elastic:
        return row.max_workers or whole, WHOLE_GPU
    if row.workers is not None:
        return row.workers, row.gpus // row.workers
    if whole > node_gpus:
        return -(-whole // node_gpus), node_gpus * WHOLE_GPU
    return 1, row.gpus
