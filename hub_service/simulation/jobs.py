"""A job of a trace while it is in the simulated cluster: its workers, and the work still to do.

Knows how a row becomes workers, how fast they work, and what a pause costs. Integers throughout,
so that ends do not depend on how often somebody looked. Knows no scheduling; driven by `engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Worker, WorkerState, Workload
from runai.hub_service.simulation.traces import TraceRow

PERMILLE = 1000
"""Speed of one worker's GPU, in the thousandths in which work is counted."""


class Job:
    """One job, from its submission to its end. Amounts in milli-GPU, times in seconds."""

    __slots__ = (
        "asked",
        "beyond",
        "ends",
        "held",
        "held_s",
        "holds",
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
        self.asked = asked = _asked_by(row, node_gpus) if row.asked is None else _named(row)
        """How the scheduler sees it before it holds anything."""
        self.is_sized = asked.gpus_max is not None
        """Whether it is one worker of more or fewer GPUs (E2)."""
        self.workers = list(asked.workers)
        wanted = [_wanted(worker) for worker in asked.workers]
        least = asked.gpus_min if self.is_sized else None
        self.request = len(wanted)
        """Workers, or GPUs of one that is sized, with which it runs for exactly its duration."""
        if self.is_sized or row.is_elastic:
            self.request = (wanted[0] if self.is_sized else row.gpus) // WHOLE_GPU
        self.minimum = asked.minimum
        self.beyond = beyond
        self.size = least or sum(wanted[: self.minimum])
        """What it needs at least to run, in milli-GPU."""
        self.largest = least or max(worker.gpus for worker in asked.workers)
        """What it needs at least of one node."""
        self.work = row.duration_s * self.request * PERMILLE
        self.overhead = 0
        """Seconds of its next run that go into reading its checkpoint."""
        self.running = 0
        self.holds = [0] * len(wanted)
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
        there = self.held // WHOLE_GPU if self.is_sized else self.running
        return PERMILLE * min(there, self.request) + self.beyond * max(0, there - self.request)

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
        is_running = state is WorkerState.RUNNING
        self.running += is_running - (self.workers[index].state is WorkerState.RUNNING)
        self._hold(index, sum(share.gpus for share in devices) if is_running else 0)
        self.workers[index] = replace(
            self.asked.workers[index],
            state=state,
            node=node,
            devices=tuple(share.device for share in devices),
            started=now if is_running else None,
        )

    def take(self, index: int) -> None:
        """Take a worker's devices away; it waits again."""
        self.running -= self.workers[index].state is WorkerState.RUNNING
        self._hold(index, 0)
        self.workers[index] = self.asked.workers[index]

    def _hold(self, index: int, milli: int) -> None:
        self.held += milli - self.holds[index]
        self.holds[index] = milli

    def index_of(self, worker: str) -> int:
        """Give a worker's number by its name."""
        return int(worker.rpartition("-")[2])

    def workload(self, project: str, *, is_plain: bool) -> Workload:
        """Draw it for the scheduler; a plain queue knows neither kinds nor priorities."""
        seen = replace(self.asked, project=project, workers=tuple(self.workers), pauses=self.pauses)
        if is_plain:
            return replace(seen, kind="job", preemptible=None, priority=None, checkpointed=None)
        return replace(seen, checkpointed=self._checkpointed())

    def _checkpointed(self) -> int | None:
        """Give since when its work is not known to be safe; None where a stop may cost all of it.

        A job with checkpoints saves one when it is stopped, but that is known only afterwards.
        """
        if self.asked.checkpointed is None:
            return None
        return max((w.started for w in self.workers if w.started is not None), default=None)


def _wanted(worker: Worker) -> int:
    """Give its milli-GPU; a part that is asked for in memory counts as a whole device."""
    if worker.gpus >= WHOLE_GPU:
        return worker.gpus
    return (worker.gpus or WHOLE_GPU) * worker.devices_wanted


def _named(row: TraceRow) -> Workload:
    """Give what a row asks for the row's own name, which decides between equals."""
    assert row.asked is not None
    workers = enumerate(row.asked.workers)
    return replace(
        row.asked,
        name=row.job,
        submitted=row.submit_s,
        workers=tuple(replace(worker, name=f"{row.job}-{n}") for n, worker in workers),
    )


def _asked_by(row: TraceRow, node_gpus: int) -> Workload:
    """Draw what a row's columns ask for."""
    count, milli = _cut(row, node_gpus)
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
    )


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
