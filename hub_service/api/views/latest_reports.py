"""What the agents told last and the ledger does not keep: processes, and notices about memory.

In memory only: after a restart the next report tells it anew, and notices are in the workload's
history. Fed by the route of the samples, shown by `views`.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from runai.hub_service.limits.sharing import Sharing, TimeSliced
from runai.hub_service.limits.tiers import Tier
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.agent_reports import AgentReport, Notice, ProcessSample

RECENT_S = 10.0
"""Older processes are not the present."""

NOTICE_FOR_S = 600.0
"""How long people are shown what was done about their memory."""

_OVER = "uses more than its share of device memory"
_TO_OTHERS = {
    "notice": _OVER,
    "interrupt": f"{_OVER}: a process of it is interrupted",
    "terminate": f"{_OVER}: a process of it is told to end",
    "kill": f"{_OVER}: a process of it is killed",
    "back": "is within its share of device memory again",
}


@dataclass
class Present:
    """The last report of each node, and who was told something lately."""

    sharing: Sharing = field(default_factory=TimeSliced)
    """How this machine's devices are shared; asked for what went wrong with it."""
    _reports: dict[str, tuple[float, AgentReport]] = field(default_factory=dict)
    _processes: dict[str, Mapping[str, Sequence[ProcessSample]]] = field(default_factory=dict)
    """Of each node's report by the device's UUID: everybody who looks asks for each device."""
    _held: dict[str, dict[WorkloadId, float]] = field(default_factory=dict)
    """When each workload was last seen to hold a device, by node."""
    _notices: dict[WorkloadId, tuple[float, Notice]] = field(default_factory=dict)

    def learn(self, now: float, report: AgentReport, held: AbstractSet[WorkloadId]) -> list[Notice]:
        """Take a report; return its notices about workloads that hold devices of its node.

        Or held them lately: what was killed is gone when that is told. Of others a node's agent has
        nothing to tell.
        """
        before = self._reports.get(report.node)
        if before is None or report.at >= before[1].at:  # reports that waited come late
            self._reports[report.node] = now, report
            self._processes[report.node] = _by_device(report)
        lately = self._held.get(report.node, {}) | dict.fromkeys(held, now)
        lately = {workload: at for workload, at in lately.items() if now - at < NOTICE_FOR_S}
        self._held[report.node] = lately
        news = [n for n in report.notices if n.workload in lately]
        self._notices |= {notice.workload: (now, notice) for notice in news}
        self._notices = {
            workload: (at, notice)
            for workload, (at, notice) in self._notices.items()
            if now - at < NOTICE_FOR_S
        }
        return news

    def notice(self, now: float, workload: WorkloadId, *, reads: bool = True) -> str:
        """Return what was done lately about a workload's memory, "" if nothing.

        What its agent says of it names its programs: that is for who `reads` them.
        """
        at, notice = self._notices.get(workload, (0.0, None))
        if notice is None or now - at >= NOTICE_FOR_S:
            return ""
        return notice.text if reads else _TO_OTHERS[notice.rung]

    def tier(self, workload: WorkloadId) -> Tier:
        """Return what keeps a workload within its share, as its agent says."""
        told = (report.tiers.get(workload) for _, report in self._of_holder(workload))
        return Tier(next(filter(None, told), Tier.FRAMEWORKS))

    def no_hard_limit(self, node: str) -> str:
        """Return why the driver of a node keeps no limits; "" where it does, or nobody said."""
        return self._reports[node][1].no_hard_limit if node in self._reports else ""

    def told_at(self, node: str) -> float:
        """Return when a node's agent reported last; 0 where it never did."""
        return self._reports[node][0] if node in self._reports else 0.0

    def on(self, now: float, device: str) -> Sequence[ProcessSample]:
        """Return the processes on a device, by its UUID."""
        found: Sequence[ProcessSample] = ()
        for node, (at, _) in self._reports.items():
            if now - at < RECENT_S and (here := self._processes[node].get(device)):
                found = [*found, *here] if found else here
        return found

    def processes(self, now: float, workload: WorkloadId) -> list[ProcessSample]:
        """Return a workload's processes on devices, those with most memory first."""
        mine = (
            process
            for at, report in self._of_holder(workload)
            if now - at < RECENT_S
            for process in report.processes
            if process.workload == workload
        )
        return sorted(mine, key=lambda p: (-(p.memory_mib or 0), p.pid))

    def _of_holder(self, workload: WorkloadId) -> Iterator[tuple[float, AgentReport]]:
        """Yield the reports of the nodes where it holds devices: others' say nothing of it."""
        for node, told in self._reports.items():
            if workload in self._held.get(node, ()):
                yield told


def _by_device(report: AgentReport) -> Mapping[str, Sequence[ProcessSample]]:
    found: dict[str, list[ProcessSample]] = {}
    for process in report.processes:
        found.setdefault(process.device, []).append(process)
    return found
