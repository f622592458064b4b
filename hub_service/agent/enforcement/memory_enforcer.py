"""Enforcement of device memory limits, by signals that the watchdog decides on at each poll.

Converts polls and allocations to the watchdog's input (`limits.watchdog`), sends the signals, and
adds notices for the workloads' owners to the report.
"""

import logging
import time
from collections.abc import Callable, Sequence
from signal import Signals

import psutil

from runai.hub_service.agent.enforcement.hard_limits import HardLimits
from runai.hub_service.agent.readings import Poll
from runai.hub_service.limits.sharing import MPS_LIMIT
from runai.hub_service.limits.tiers import Tier
from runai.hub_service.limits.watchdog import EscalationStep, Holding, Watchdog, WatchedProcess
from runai.hub_service.processes import pidfd
from runai.hub_service.wire.reports import AgentAllocation, AgentReport, Notice


class MpsClients:
    """Cache of the workers that are MPS clients, by their environment."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._is_mps_client: dict[tuple[int, float | None], bool] = {}
        self._allocations: Sequence[AgentAllocation] = ()
        self._workloads: frozenset[str] = frozenset()

    def workloads_among(self, allocations: Sequence[AgentAllocation]) -> frozenset[str]:
        """Return the workloads of which each worker is an MPS client."""
        if allocations is self._allocations:
            return self._workloads
        self._allocations, self._workloads = allocations, self._find_workloads(allocations)
        return self._workloads

    def _find_workloads(self, allocations: Sequence[AgentAllocation]) -> frozenset[str]:
        limited = {(a.pid, a.created): a for a in allocations if a.pid is not None and a.limits_mib}
        self._is_mps_client = {
            key: self._is_mps_client[key] if key in self._is_mps_client else _has_mps_limit(key[0])
            for key in limited
        }
        non_clients = {
            a.workload for a in allocations if not self._is_mps_client.get((a.pid or 0, a.created))
        }
        return frozenset({a.workload for a in allocations} - non_clients)


def _has_mps_limit(pid: int) -> bool:
    try:
        return MPS_LIMIT in psutil.Process(pid).environ()
    except psutil.Error:
        return False


log = logging.getLogger(__name__)


class Limits:
    """Memory limits by workload and device, from allocations; a whole device has no limit."""

    def __init__(self, allocations: Sequence[AgentAllocation]) -> None:
        """Add up the limits of each workload on each device."""
        self.allocations = allocations
        self._mib: dict[tuple[str, str], int] = {}
        for allocation in allocations:
            for device, limit in allocation.limits_mib.items():
                key = (allocation.workload, device)
                self._mib[key] = self._mib.get(key, 0) + limit
        self._servers = {a.pid for a in allocations if a.pid is not None and a.is_server}

    def holdings(self, poll: Poll) -> list[Holding]:
        """Return the memory use of each workload on each device that it shares."""
        members: dict[tuple[str, str], list[WatchedProcess]] = {key: [] for key in self._mib}
        for p in poll.processes:
            members_here = members.get((p.workload, p.device))
            if members_here is not None and p.memory_mib is not None and p.created:
                is_spared = p.pid in self._servers
                members_here.append(
                    WatchedProcess(p.pid, p.created, p.memory_mib, p.name, is_spared)
                )
        return [
            Holding(workload, device, limit, tuple(members[workload, device]))
            for (workload, device), limit in self._mib.items()
        ]


class MemoryEnforcer:
    """Enforcer of memory limits on one node."""

    def __init__(
        self,
        send: Callable[[int, float, Signals], bool] = pidfd.send,
        clock: Callable[[], float] = time.monotonic,
        *,
        hard: HardLimits | None = None,
        no_hard_limit: str = "",
    ) -> None:
        """Signal through `send`, which must not signal another process with a reused PID.

        `hard` sets the driver's limits; without it `no_hard_limit` is the reason, shown to users.
        """
        self._hard = hard
        self._mps = MpsClients()
        self._no_hard_limit = no_hard_limit
        self._send = send
        self._clock = clock
        self._watchdog = Watchdog()
        self._limits = Limits(())

    def enforce_and_report(
        self, report: AgentReport, poll: Poll, allocations: Sequence[AgentAllocation]
    ) -> AgentReport:
        """Enforce limits for one poll; return the report with notices and enforcement tiers."""
        hard = frozenset() if self._hard is None else self._hard.enforce(allocations)
        return report.model_copy(
            update={
                "notices": self.enforce(poll, allocations),
                "tiers": dict.fromkeys(
                    sorted(self._mps.workloads_among(allocations)), Tier.MPS.value
                )
                | dict.fromkeys(sorted(hard), Tier.DRIVER.value),
                "no_hard_limit": self._no_hard_limit,
            }
        )

    def enforce(self, poll: Poll, allocations: Sequence[AgentAllocation]) -> tuple[Notice, ...]:
        """Enforce limits for one poll; return notices for the owners."""
        # The list object changes only when the service sends different allocations.
        if allocations is not self._limits.allocations:
            self._limits = Limits(allocations)
        steps = self._watchdog.check(self._clock(), self._limits.holdings(poll), poll.failed)
        return tuple(
            Notice(
                workload=step.workload,
                device=step.device,
                at=poll.at,
                rung=step.rung.value,
                text=step.sentence() + self._act(step),
            )
            for step in steps
        )

    def _act(self, step: EscalationStep) -> str:
        """Send the step's signal, if any; return a suffix for its sentence."""
        if step.target_process is None or step.rung.signal is None:
            return ""
        try:
            sent = self._send(
                step.target_process.pid, step.target_process.created, step.rung.signal
            )
        except PermissionError:
            log.warning("%s: no right to signal process %d", step.workload, step.target_process.pid)
            return ", but the platform's account has no right to"
        log.warning("%s %s", step.workload, step.sentence())
        return step.outlook() if sent else ", but it had ended by itself"
