"""CPU use of sessions with an idle GPU: they may work on the CPU.

Measures only the sessions' programs that are on a device.
"""

from collections.abc import Sequence

import psutil

from runai.hub_service.agent.readings import Poll
from runai.hub_service.wire.reports import AgentAllocation, AgentReport

IDLE_BELOW = 0.01


class CpuMeter:
    """CPU time of each program at the previous poll."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, float], float] = {}

    def add(
        self, report: AgentReport, poll: Poll, allocations: Sequence[AgentAllocation]
    ) -> AgentReport:
        """Return the report with the busy CPU cores of idle sessions in its samples."""
        servers = {a.pid for a in allocations if a.is_server}
        sessions = {a.workload for a in allocations if a.is_server}
        idle = {
            s.workload
            for s in report.samples
            if s.workload in sessions and s.utilization is not None and s.utilization < IDLE_BELOW
        }
        before, self._seconds = self._seconds, {}
        cores: dict[str, float] = {}
        if not idle:
            return report
        for pid, created, workload in {
            (p.pid, p.created, p.workload)
            for p in poll.processes
            if p.workload in idle and p.created and p.pid not in servers
        }:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            spent = self._seconds[pid, created] = times.user + times.system
            if (pid, created) in before and report.interval > 0:
                busy = (spent - before[pid, created]) / report.interval
                cores[workload] = cores.get(workload, 0.0) + busy
        samples = [
            s.model_copy(update={"cpu": cores[s.workload]}) if s.workload in cores else s
            for s in report.samples
        ]
        return report.model_copy(update={"samples": samples}) if cores else report
