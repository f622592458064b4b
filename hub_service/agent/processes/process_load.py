"""How much processor time and memory the workloads of this node use, process by process.

Feeds the simulated devices. Looks at the list of processes once per look, and reads only those
that are new or belong to a workload; the time of children that ended between two looks is counted
through their parents. Knows nothing of devices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from runai.hub_service.agent.processes.process_owners import Owners, Whose
from runai.hub_service.wire.agent_reports import AgentAllocation

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process used since the look before."""

    pid: int
    allocation: AgentAllocation
    cpu_seconds: float
    memory_mib: float
    whose: Whose


@dataclass(slots=True)
class _Counters:
    """A process of a workload and its counters at the last look, in seconds."""

    process: psutil.Process
    allocation: AgentAllocation
    parent: int
    own: float
    children: float
    """Of children that ended and were waited for."""


class ProcessTable:
    """The processes of the workloads that hold devices. Not thread-safe."""

    def __init__(self) -> None:
        self._owners = Owners()
        self._counters: dict[int, _Counters] = {}
        self._pids: frozenset[int] | None = None

    def forget(self) -> None:
        """Drop everything: nothing is measured any more, the next look only notes the counters."""
        self._counters = {}
        self._pids = None

    def look(self, allocations: Sequence[AgentAllocation]) -> list[ProcessUse] | None:
        """Return what each process of a workload used since the previous look.

        None at the first look, and after `forget`: there is nothing to compare with.
        """
        self._owners.learn(allocations)
        pids = frozenset(psutil.pids())
        self._owners.retain(pids)
        before, appeared = self._counters, pids - (self._pids or frozenset())
        self._counters = {c.process.pid: c for c in self._read(pids)}
        first, self._pids = self._pids is None, pids
        if first:
            return None
        ended = [c for pid, c in before.items() if pid not in self._counters]
        return [
            ProcessUse(
                pid=pid,
                allocation=now.allocation,
                cpu_seconds=_spent(now, before.get(pid), ended, new=pid in appeared),
                memory_mib=_resident_mib(now.process),
                whose=self._owners.whose(pid),
            )
            for pid, now in self._counters.items()
        ]

    def _read(self, pids: frozenset[int]) -> Iterator[_Counters]:
        for pid in sorted(pids):
            kept = self._counters.get(pid)
            if kept is None and self._owners.is_stranger(pid):
                continue
            try:
                # is_running() also tells a process from a later one with its number.
                process = (
                    kept.process
                    if kept is not None and kept.process.is_running()
                    else psutil.Process(pid)
                )
                allocation = self._owners.owner(process)
                if allocation is None:
                    continue
                times = process.cpu_times()
                parent = kept.parent if kept is not None else process.ppid()
            except psutil.Error:
                continue
            yield _Counters(
                process,
                allocation,
                parent,
                own=times.user + times.system,
                # Only Linux counts children that ended.
                children=getattr(times, "children_user", 0.0)
                + getattr(times, "children_system", 0.0),
            )


def _spent(
    now: _Counters, before: _Counters | None, ended: Sequence[_Counters], *, new: bool
) -> float:
    if before is not None and before.process == now.process:
        own, children = now.own - before.own, now.children - before.children
        # What an ended child had used was counted at earlier looks; now it is its parent's.
        counted = sum(c.own + c.children for c in ended if c.parent == now.process.pid)
        return max(0.0, own) + max(0.0, children - counted)
    # Appeared since the last look: all it used was used since. Else it only became ours now.
    return now.own + now.children if new else 0.0


def _resident_mib(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / MIB
    except psutil.Error:
        return 0.0
