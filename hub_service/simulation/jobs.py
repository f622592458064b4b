"""A job of a trace while it is in the simulated cluster: its workers, and the work still to do.

Knows how a row becomes workers, how fast they work, and what a pause costs. Integers throughout,
so that ends do not depend on how often somebody looked. Knows no scheduling; driven by `engine`.
"""

from __future__ import annotations

from collections.abc import Sequence

from runai.hub_service.scheduler.model import DeviceShare, Worker, WorkerState, Workload
from runai.hub_service.scheduler.quantity import WHOLE_GPU, Mib, MilliGpu
from runai.hub_service.simulation.traces import TraceRow

__all__ = ["PERMILLE", "Job"]

PERMILLE = 1000
"""Speed of one worker's GPU, in the thousandths in which work is counted."""


class Job:
    """One job, from its submission to its end. Amounts in milli-GPU, times in seconds."""

    __slots__ = (
        "beyond",
        "ends",
        "held",
        "held_s",
        "holds",
        "milli",
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
        "version",
        "work",
        "workers",
    )

    def __init__(self, row: TraceRow, node_gpus: int, beyond: int) -> None:
        """Cut a row into workers for nodes of that many GPUs.

        `beyond` is what an elastic worker above the request adds, in thousandths.
        """
        self.row = row
        self.name = row.job
        count, milli = _cut(row, node_gpus)
        self.milli = milli
        """Of each worker; 0 where it asks for memory."""
        self.request = row.gpus // WHOLE_GPU if row.is_elastic else count
        """Workers with which it runs for exactly its duration."""
        self.minimum = (row.min_workers or 1) if row.is_elastic else count
        self.beyond = beyond
        self.workers = [_pending(row, self.milli, n) for n in range(count)]
        self.size = self.minimum * (milli or WHOLE_GPU)
        """What it needs at least to run."""
        self.work = row.duration_s * self.request * PERMILLE
        self.overhead = 0
        """Seconds of its next run that go into reading its checkpoint."""
        self.running = 0
        self.holds = [0] * count
        """What each worker holds while it runs, in milli-GPU."""
        self.held = 0
        self.since = 0
        """When its progress was last looked at."""
        self.held_s = 0
        """Milli-GPU-seconds since it last started from zero, as far as they are measured."""
        self.ran_s = 0
        """Seconds for which its minimum ran: the rest of its time it waited."""
        self.version = 0
        self.ends = -1
        self.pauses: tuple[int, ...] = ()

    @property
    def is_up(self) -> bool:
        """Tell whether it makes progress: its minimum runs."""
        return self.running >= self.minimum

    @property
    def speed(self) -> int:
        """Give the work done in a second; a duration's second is `request` thousand of it."""
        if not self.is_up:
            return 0
        return PERMILLE * min(self.running, self.request) + self.beyond * max(
            0, self.running - self.request
        )

    def advance(self, now: int) -> int:
        """Work until `now`; give the seconds of it that were spent on reading a checkpoint."""
        passed, self.since = now - self.since, now
        if passed <= 0 or not self.is_up:
            return 0
        self.ran_s += passed
        spent = min(passed, self.overhead)
        self.overhead -= spent
        self.work -= (passed - spent) * self.speed
        return spent

    def end(self, now: int) -> int:
        """Give when it ends if nothing changes."""
        return now + self.overhead + -(-self.work // self.speed)

    def start_over(self) -> None:
        """Lose what was done since the start: there is no checkpoint."""
        self.work = self.row.duration_s * self.request * PERMILLE

    # ---- its workers, as the scheduler sees them

    def place(
        self, index: int, state: WorkerState, node: str, devices: Sequence[DeviceShare], now: int
    ) -> None:
        """Put a worker on devices, running or reserved."""
        old = self.workers[index]
        is_running = state is WorkerState.RUNNING
        self.running += is_running - (old.state is WorkerState.RUNNING)
        self._hold(index, sum(share.gpus for share in devices) if is_running else 0)
        self.workers[index] = _worker(
            self.row,
            old.name,
            old.gpus,
            state=state,
            node=node,
            devices=tuple(share.device for share in devices),
            started=now if is_running else None,
        )

    def take(self, index: int) -> None:
        """Take a worker's devices away; it waits again."""
        self.running -= self.workers[index].state is WorkerState.RUNNING
        self._hold(index, 0)
        self.workers[index] = _pending(self.row, self.milli, index)

    def _hold(self, index: int, milli: int) -> None:
        self.held += milli - self.holds[index]
        self.holds[index] = milli

    def index_of(self, worker: str) -> int:
        """Give a worker's number by its name."""
        return int(worker.rpartition("-")[2])

    def workload(self, project: str, *, is_plain: bool) -> Workload:
        """Draw it for the scheduler; a plain queue knows neither kinds nor priorities."""
        row = self.row
        return Workload(
            name=self.name,
            project=project,
            workers=tuple(self.workers),
            user=row.user,
            kind="job" if is_plain else row.kind,
            priority=None if is_plain else row.priority,
            submitted=row.submit_s,
            min_workers=self.minimum,
            pauses=self.pauses,
            checkpointed=None if is_plain else self._checkpointed(),
        )

    def _checkpointed(self) -> int | None:
        """Give since when its work is not known to be safe; None where a stop may cost all of it.

        A job with checkpoints saves one when it is stopped, but that is known only afterwards.
        """
        if self.row.checkpoint_cost_s is None:
            return None
        return max((w.started for w in self.workers if w.started is not None), default=None)


def _cut(row: TraceRow, node_gpus: int) -> tuple[int, int]:
    """Give the number of workers and the milli-GPU of each."""
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


def _worker(
    row: TraceRow,
    name: str,
    gpus: int,
    *,
    state: WorkerState,
    node: str | None,
    devices: tuple[int, ...],
    started: int | None,
) -> Worker:
    return Worker(
        name=name,
        gpus=MilliGpu(gpus),
        gpu_memory_mib=None if row.gpu_memory_mib is None else Mib(row.gpu_memory_mib),
        state=state,
        node=node,
        devices=devices,
        started=started,
        cpu_milli=row.cpu_milli,
        memory_mib=Mib(row.memory_mib),
        gpu_types=(row.gpu_type,) if row.gpu_type else (),
    )


def _pending(row: TraceRow, gpus: int, index: int) -> Worker:
    return _worker(
        row,
        f"{row.job}-{index}",
        gpus,
        state=WorkerState.PENDING,
        node=None,
        devices=(),
        started=None,
    )
