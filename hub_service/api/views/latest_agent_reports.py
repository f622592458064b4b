"""Latest agent reports: processes, memory notices and limit tiers.

In memory only: after a restart the next report fills it again, and notices are also in the
workload's history.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from runai.hub_service.limits.sharing import Sharing, TimeSliced
from runai.hub_service.limits.tiers import Tier
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.reports import AgentReport, Notice, ProcessSample

RECENT_S = 10.0
"""Seconds for which reported processes count as current."""

NOTICE_FOR_S = 600.0
"""Seconds for which users see the last action on their memory use."""

_OVER = "uses more than its share of device memory"
_PUBLIC_NOTICES = {
    "notice": _OVER,
    "interrupt": f"{_OVER}: a process of it is interrupted",
    "terminate": f"{_OVER}: a process of it is told to end",
    "kill": f"{_OVER}: a process of it is killed",
}


@dataclass
class AgentReports:
    """Last report of each node, and recent memory notices by workload."""

    sharing: Sharing = field(default_factory=TimeSliced)
    """How this machine shares its devices; reports why MPS is unavailable."""
    _reports: dict[str, tuple[float, AgentReport]] = field(default_factory=dict)
    _processes: dict[str, Mapping[str, Sequence[ProcessSample]]] = field(default_factory=dict)
    """Processes of each node's report by device UUID: each reader queries each device."""
    _last_allocated: dict[str, dict[WorkloadId, float]] = field(default_factory=dict)
    """When each workload was last seen to hold a device, by node."""
    _notices: dict[WorkloadId, tuple[float, Notice]] = field(default_factory=dict)

    def store(
        self, now: float, report: AgentReport, holders: AbstractSet[WorkloadId]
    ) -> list[Notice]:
        """Store a report; return its notices about workloads on its node.

        Workloads that held devices within NOTICE_FOR_S count too: a killed one is gone when the
        agent reports it. Notices about any other workload are dropped.
        """
        last = self._reports.get(report.node)
        if last is None or report.at >= last[1].at:  # delayed reports arrive out of order
            self._reports[report.node] = now, report
            self._processes[report.node] = _processes_by_device(report)
        recent_holders = self._last_allocated.get(report.node, {}) | dict.fromkeys(holders, now)
        recent_holders = {
            workload: at for workload, at in recent_holders.items() if now - at < NOTICE_FOR_S
        }
        self._last_allocated[report.node] = recent_holders
        accepted = [n for n in report.notices if n.workload in recent_holders]
        self._notices |= {notice.workload: (now, notice) for notice in accepted}
        self._notices = {
            workload: (at, notice)
            for workload, (at, notice) in self._notices.items()
            if now - at < NOTICE_FOR_S
        }
        return accepted

    def notice(self, now: float, workload: WorkloadId, *, reads: bool = True) -> str:
        """Return the last action on a workload's memory use, "" if none is recent or it is over.

        The agent's text names the workload's programs: callers without `reads` get a general one.
        """
        at, notice = self._notices.get(workload, (0.0, None))
        if notice is None or notice.rung == "back" or now - at >= NOTICE_FOR_S:
            return ""
        return notice.text if reads else _PUBLIC_NOTICES[notice.rung]

    def tier(self, workload: WorkloadId) -> Tier:
        """Return the tier of a workload's memory limit, as its agent reports it."""
        tiers = (report.tiers.get(workload) for _, report in self._holder_reports(workload))
        return Tier(next(filter(None, tiers), Tier.FRAMEWORKS))

    def no_hard_limit_reason(self, node: str) -> str:
        """Return why a node's driver enforces no limit; "" if it does or is unknown."""
        return self._reports[node][1].no_hard_limit if node in self._reports else ""

    def reported_at(self, node: str) -> float:
        """Return when a node's agent reported last; 0 if it never did."""
        return self._reports[node][0] if node in self._reports else 0.0

    def device_processes(self, now: float, device: str) -> Sequence[ProcessSample]:
        """Return the processes on a device, by its UUID."""
        all_processes: Sequence[ProcessSample] = ()
        for node, (at, _) in self._reports.items():
            if now - at < RECENT_S and (processes := self._processes[node].get(device)):
                all_processes = [*all_processes, *processes] if all_processes else processes
        return all_processes

    def processes(self, now: float, workload: WorkloadId) -> list[ProcessSample]:
        """Return a workload's processes on devices, by descending memory."""
        own_processes = (
            process
            for at, report in self._holder_reports(workload)
            if now - at < RECENT_S
            for process in report.processes
            if process.workload == workload
        )
        return sorted(own_processes, key=lambda p: (-(p.memory_mib or 0), p.pid))

    def _holder_reports(self, workload: WorkloadId) -> Iterator[tuple[float, AgentReport]]:
        """Yield the reports of the nodes where the workload holds devices."""
        for node, entry in self._reports.items():
            if workload in self._last_allocated.get(node, ()):
                yield entry


def _processes_by_device(report: AgentReport) -> Mapping[str, Sequence[ProcessSample]]:
    processes: dict[str, list[ProcessSample]] = {}
    for process in report.processes:
        processes.setdefault(process.device, []).append(process)
    return processes
