"""Which process belongs to which workload, and a poll's readings as the report that is sent.

A process belongs to the allocation whose process is its nearest ancestor; one that detached itself
still names its worker in its environment (believed only where the Unix account agrees). Knows
psutil and PID reuse; knows no drivers. Used by both device sources and by the loop.
"""

import contextlib
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import psutil

from runai.hub_service.agent.devices import Poll, ProcessReading
from runai.hub_service.api.reports import AgentAllocation, AgentReport, DeviceSample, UsageSample

__all__ = ["Owners", "report"]

SAME_START_S = 2.0
"""Creation times nearer than this are one process: the kernel gives them relative to a boot time
in whole seconds, which each program rounds for itself."""

MAX_ANCESTORS = 64


YOUNG_S = 10.0
"""A process may become a workload's while it is younger: it gets its environment at its exec."""

LOOK_AGAIN_S = 60.0
"""How often the others that belong to nobody are looked at again."""


@dataclass(frozen=True, slots=True)
class _Owned:
    created: float
    owner: AgentAllocation | None


class Owners:
    """Remember whose each process is, until the allocations or the process change."""

    def __init__(self) -> None:
        self._allocations: tuple[AgentAllocation, ...] = ()
        self._roots: dict[int, AgentAllocation] = {}
        self._by_name: dict[str, AgentAllocation] = {}
        self._accounts: dict[str, set[int]] = {}
        self._known: dict[int, _Owned] = {}
        self._looked_again = time.monotonic()

    def learn(self, allocations: Sequence[AgentAllocation]) -> None:
        """Take note of who holds devices now; what was known is forgotten when that changed."""
        if tuple(allocations) == self._allocations:
            return
        self._allocations = tuple(allocations)
        self._roots = {a.pid: a for a in allocations if a.pid is not None}
        # A worker's own name wins over its workload's, which stands for the first worker.
        self._by_name = {a.workload: a for a in reversed(allocations)}
        self._by_name |= {a.worker: a for a in allocations}
        self._accounts = {}
        self._known = {}
        for pid in self._roots:
            # First, so that no stranger can claim to be of a workload that has a process.
            with contextlib.suppress(psutil.Error):
                self.owner(psutil.Process(pid))

    def retain(self, pids: AbstractSet[int]) -> None:
        """Forget all processes but these; at times also those that belonged to nobody.

        They may have become somebody's since.
        """
        all_again = time.monotonic() - self._looked_again > LOOK_AGAIN_S
        if all_again:
            self._looked_again = time.monotonic()
        young = time.time() - YOUNG_S
        self._known = {
            pid: known
            for pid, known in self._known.items()
            if pid in pids and (known.owner or not (all_again or known.created > young))
        }

    def is_stranger(self, pid: int) -> bool:
        """Tell whether it was found to belong to nobody, without looking again."""
        known = self._known.get(pid)
        return known is not None and known.owner is None

    def owner(self, process: psutil.Process) -> AgentAllocation | None:
        """Return the allocation that a process belongs to; None for other processes.

        Raises:
            psutil.Error: it is gone, or not ours to see.
        """
        return self._owner(process, MAX_ANCESTORS)

    def _owner(self, process: psutil.Process, depth: int) -> AgentAllocation | None:
        created = process.create_time()
        known = self._known.get(process.pid)
        if known is not None and known.created == created:
            return known.owner
        owner = self._find(process, created, depth)
        self._known[process.pid] = _Owned(created, owner)
        return owner

    def _find(self, process: psutil.Process, created: float, depth: int) -> AgentAllocation | None:
        root = self._roots.get(process.pid)
        if root is not None and (
            root.created is None or abs(root.created - created) < SAME_START_S
        ):
            self._accounts.setdefault(root.workload, set()).add(process.uids().real)
            return root
        if (parent := self._parent(process, depth)) is not None:
            self._accounts.setdefault(parent.workload, set()).add(process.uids().real)
            return parent
        return self._by_environment(process)

    def _parent(self, process: psutil.Process, depth: int) -> AgentAllocation | None:
        if depth == 0:
            return None
        try:
            pid = process.ppid()
            # A parent lives, so its number is nobody else's.
            known = self._known.get(pid)
            if known is not None:
                return known.owner
            return self._owner(psutil.Process(pid), depth - 1) if pid else None
        except psutil.Error:
            return None

    def _by_environment(self, process: psutil.Process) -> AgentAllocation | None:
        try:
            environment = process.environ()
        except psutil.Error:
            return None
        claimed = self._by_name.get(environment.get("RUNAI_WORKER", "")) or self._by_name.get(
            environment.get("RUNAI_WORKLOAD", "")
        )
        if claimed is None:
            return None
        # Anybody can write a name into an environment; only the workload's own accounts may.
        accounts = self._accounts.get(claimed.workload)
        return claimed if accounts is None or process.uids().real in accounts else None


def report(node: str, poll: Poll, allocations: Sequence[AgentAllocation]) -> AgentReport:
    """Turn a poll into what is sent: one sample for each workload and device that it holds.

    A device that failed has no samples (a gap); a holder without a process there is a zero.
    Processes that belong to no workload, or use a device that theirs does not hold, are told too.
    """
    held = {(a.workload, share.uuid) for a in allocations for share in a.shares}
    seen: dict[tuple[str, str], list[ProcessReading]] = {}
    for reading in poll.processes:
        seen.setdefault((reading.workload, reading.device), []).append(reading)
    samples = [
        _sample(workload, device, seen.get((workload, device), []))
        for workload, device in sorted(held | seen.keys())
        if device not in poll.failed
    ]
    return AgentReport(
        node=node,
        at=poll.at,
        interval=poll.interval,
        devices=[
            DeviceSample(
                device=d.device,
                utilization=d.utilization,
                memory_mib=d.memory_mib,
                healthy=d.healthy,
            )
            for d in poll.devices
        ],
        samples=samples,
    )


def _sample(workload: str, device: str, readings: Sequence[ProcessReading]) -> UsageSample:
    busy = [r.utilization for r in readings if r.utilization is not None]
    # No process: idle. Processes of which the driver tells nothing: unknown.
    utilization = None if readings and not busy else min(1.0, sum(busy))
    memory = sum(r.memory_mib for r in readings if r.memory_mib is not None)
    return UsageSample(workload=workload, device=device, utilization=utilization, memory_mib=memory)
