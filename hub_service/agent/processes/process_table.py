"""CPU time and memory of the node's workloads by process, the load of simulated devices.

Lists the processes once per call and reads only new processes and processes of workloads. The time
of children that ended between two calls is counted through their parents.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from runai.hub_service.agent.processes.process_owners import ProcessOwner, ProcessOwners
from runai.hub_service.wire.reports import AgentAllocation

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Use of CPU and memory by one process since the previous call."""

    pid: int
    allocation: AgentAllocation
    cpu_seconds: float
    memory_mib: float
    owner: ProcessOwner


@dataclass(slots=True)
class _CpuCounters:
    """A process of a workload and its CPU counters at the last call, in seconds."""

    process: psutil.Process
    allocation: AgentAllocation
    parent: int
    own: float
    children: float
    """CPU time of children that ended and were reaped."""


class ProcessTable:
    """The processes of the workloads that hold devices. Not thread-safe."""

    def __init__(self) -> None:
        self._owners = ProcessOwners()
        self._counters: dict[int, _CpuCounters] = {}
        self._pids: frozenset[int] | None = None

    def forget(self) -> None:
        """Clear all counters; the next `measure` only reads a new baseline."""
        self._counters = {}
        self._pids = None

    def measure(self, allocations: Sequence[AgentAllocation]) -> list[ProcessUse] | None:
        """Return the use of each process of a workload since the previous call.

        None at the first call, and after `forget`: there is no baseline.
        """
        self._owners.set_allocations(allocations)
        pids = frozenset(psutil.pids())
        self._owners.retain(pids)
        before, appeared = self._counters, pids - (self._pids or frozenset())
        self._counters = {c.process.pid: c for c in self._read(pids)}
        is_first, self._pids = self._pids is None, pids
        if is_first:
            return None
        ended = [c for pid, c in before.items() if pid not in self._counters]
        return [
            ProcessUse(
                pid=pid,
                allocation=now.allocation,
                cpu_seconds=_cpu_seconds_since(now, before.get(pid), ended, new=pid in appeared),
                memory_mib=_resident_mib(now.process),
                owner=self._owners.owner_of(pid),
            )
            for pid, now in self._counters.items()
        ]

    def _read(self, pids: frozenset[int]) -> Iterator[_CpuCounters]:
        """Yield the present counters of each process of a workload."""
        for pid in sorted(pids):
            counters = self._counters.get(pid)
            if counters is None and self._owners.is_stranger(pid):
                continue
            try:
                # is_running() also detects a reused PID.
                process = (
                    counters.process
                    if counters is not None and counters.process.is_running()
                    else psutil.Process(pid)
                )
                allocation = self._owners.allocation_of(process)
                if allocation is None:
                    continue
                times = process.cpu_times()
                parent = counters.parent if counters is not None else process.ppid()
            except psutil.Error:
                continue
            yield _CpuCounters(
                process,
                allocation,
                parent,
                own=times.user + times.system,
                # Only Linux counts the time of ended children.
                children=getattr(times, "children_user", 0.0)
                + getattr(times, "children_system", 0.0),
            )


def _cpu_seconds_since(
    now: _CpuCounters, before: _CpuCounters | None, ended: Sequence[_CpuCounters], *, new: bool
) -> float:
    """Return a process's CPU time since the previous call, with that of its ended children."""
    if before is not None and before.process == now.process:
        own, children = now.own - before.own, now.children - before.children
        # The kernel adds an ended child's time to its parent's: subtract the part counted before.
        already_charged = sum(c.own + c.children for c in ended if c.parent == now.process.pid)
        return max(0.0, own) + max(0.0, children - already_charged)
    # A process started since the previous call: count all of its use. An older process that
    # joined the workload since: count nothing yet.
    return now.own + now.children if new else 0.0


def _resident_mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / MIB
    except psutil.Error:
        return 0.0
