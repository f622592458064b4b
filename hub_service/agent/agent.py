"""The agent's main loop: poll the devices, report, and receive the allocations to measure.

Polls each second, more slowly while nothing is allocated; buffers reports while the service is
unreachable; ends with its parent or on cancellation. Samples are sent oldest first. Device
ownership by pod is state, not a sample: every report carries its newest value.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from runai.hub_service.agent import usage
from runai.hub_service.agent.enforcement.device_release import DeviceReleaser
from runai.hub_service.agent.enforcement.memory_enforcer import MemoryEnforcer
from runai.hub_service.agent.processes.cpu_use import CpuMeter
from runai.hub_service.agent.readings import DeviceSource
from runai.hub_service.wire.errors import RunaiError, Unavailable
from runai.hub_service.wire.reports import (
    AgentAllocation,
    AgentReply,
    AgentReport,
    NodeDevice,
    PodDevices,
)

log = logging.getLogger(__name__)

BUSY_S = 1.0
"""Poll interval while anything is allocated."""

IDLE_S = 2.0
"""Poll interval while nothing is allocated, at most: a new allocation ends the wait."""

MAX_QUEUED_REPORTS = 600
"""Size of the report buffer; a full buffer drops its oldest report."""

MAX_DELAY_S = 10.0


class Kubelet(Protocol):
    """Source of the devices assigned to each pod (`pod_resources`)."""

    def holders(self) -> Mapping[str, Sequence[str]]:
        """Return the UUIDs of each pod's devices, by `namespace/name`.

        Raises:
            OSError: the kubelet does not answer; a later call may succeed.
        """


class ReportTransport(Protocol):
    """Transport of the agent's measurement reports to the service (`reporting`)."""

    async def report(self, report: AgentReport) -> AgentReply:
        """Deliver one report.

        Raises:
            Unavailable: the service is unreachable; the caller may retry the same report.
        """


class _PodHolders(NamedTuple):
    """Devices of each pod on a Kubernetes node, at one moment."""

    at: float
    """Time of the kubelet call, monotonic clock."""
    pods: tuple[PodDevices, ...]
    inventory: tuple[NodeDevice, ...]


@dataclass(slots=True)
class LoopCounters:
    """Counters of the loop since its start; only the loop writes them."""

    polls: int = 0
    failed: int = 0
    seconds: float = 0.0
    """Spent in polls."""
    sent: int = 0
    dropped: int = 0
    """Reports that the service refused, or that left the full buffer."""
    waiting: int = 0
    last_report: AgentReport | None = None


class Agent:
    """Measuring and reporting loop of one node."""

    def __init__(
        self,
        node: str,
        source: DeviceSource,
        reporter: ReportTransport,
        *,
        should_run: Callable[[], bool] = lambda: True,
        busy_s: float = BUSY_S,
        idle_s: float = IDLE_S,
        enforcer: MemoryEnforcer | None = None,
        releaser: DeviceReleaser | None = None,
        kubelet: Kubelet | None = None,
    ) -> None:
        """Set up the loop; it runs while `should_run` returns True.

        `source` measures, `reporter` delivers, `enforcer` enforces memory limits, `releaser` ends
        programs on released devices. `kubelet` is set on Kubernetes nodes only.
        """
        self._node = node
        self._source = source
        self._reporter = reporter
        self._should_run = should_run
        self._busy_s, self._idle_s = busy_s, idle_s
        self._enforcer = enforcer or MemoryEnforcer()
        self._releaser = releaser or DeviceReleaser()
        self._kubelet = kubelet
        self._kubelet_is_away = False
        self._pod_holders: _PodHolders | None = None
        """Devices by pod at the newest poll; None: the kubelet did not answer."""
        self._cpu_meter = CpuMeter()
        self.tally = LoopCounters()
        self._allocations: list[AgentAllocation] = []
        self._unsent: deque[tuple[float, AgentReport]] = deque(maxlen=MAX_QUEUED_REPORTS)
        """Unsent reports, each with its time of measurement (monotonic clock)."""
        self._to_send = asyncio.Event()
        self._allocated = asyncio.Event()

    async def run(self) -> None:
        """Measure and report until cancelled, or until `should_run` returns False."""
        async with asyncio.TaskGroup() as tasks:
            sender = tasks.create_task(self._run_sender())
            await self._run_measuring()
            sender.cancel()

    async def _run_measuring(self) -> None:
        """Poll until `should_run` returns False; after a failure wait before the next poll."""
        failures = 0
        while self._should_run():
            started = time.monotonic()
            try:
                await self._poll()
                failures = 0
            except Exception:
                failures += 1
                self.tally.failed += 1
                log.exception("measuring failed %d times; the gap shows in the charts", failures)
            if failures:
                await asyncio.sleep(_retry_delay_s(failures))
            elif self._allocations:
                await asyncio.sleep(max(0.0, started + self._busy_s - time.monotonic()))
            else:
                self._allocated.clear()
                try:
                    async with asyncio.timeout(self._idle_s):
                        await self._allocated.wait()
                except TimeoutError:
                    continue

    async def _poll(self) -> None:
        """Measure once, and queue the report."""
        allocations, began = self._allocations, time.monotonic()
        self.tally.polls += 1
        # In a thread: a hanging driver must not block the event loop, which sends the reports.
        report = await asyncio.to_thread(self._build_report, allocations)
        measured = time.monotonic()
        self.tally.seconds += measured - began
        self.tally.last_report = report
        self.tally.dropped += len(self._unsent) == MAX_QUEUED_REPORTS
        self._unsent.append((measured, report))
        self.tally.waiting = len(self._unsent)
        self._to_send.set()

    def _build_report(self, allocations: list[AgentAllocation]) -> AgentReport:
        """Poll the devices, and enforce limits and releases; return the report."""
        poll = self._source.poll(allocations)
        self._pod_holders = self._fetch_holders()
        report = usage.report(self._node, poll, allocations)
        # A failed enforcement must not cost the measurements: report them anyway.
        try:
            self._releaser.enforce(poll, allocations)
            report = self._cpu_meter.add(report, poll, allocations)
            return self._enforcer.enforce_and_report(report, poll, allocations)
        except Exception:
            log.exception("limits and releases could not be enforced")
            return report

    def _fetch_holders(self) -> _PodHolders | None:
        """Return the devices by pod; None outside Kubernetes or without the kubelet's answer."""
        if self._kubelet is None:
            return None
        queried_at = time.monotonic()
        try:
            holders = self._kubelet.holders()
        except OSError as error:
            if not self._kubelet_is_away:
                log.warning("%s", error)
            self._kubelet_is_away = True
            return None
        self._kubelet_is_away = False
        return _PodHolders(
            queried_at,
            tuple(PodDevices(pod=pod, devices=list(uuids)) for pod, uuids in holders.items()),
            tuple(
                NodeDevice(uuid=d.uuid, name=d.name, memory_mib=d.memory_mib, simulated=d.simulated)
                for d in self._source.devices()
            ),
        )

    def _as_of_now(self, measured: float, report: AgentReport) -> AgentReport:
        """Return a copy of a report with its age and the newest devices by pod."""
        now, holders = time.monotonic(), self._pod_holders
        update: dict[str, Any] = {"age": now - measured}
        if holders is not None:
            update |= {"pods": holders.pods, "inventory": holders.inventory}
            update["pods_age"] = now - holders.at
        return report.model_copy(update=update)

    async def _run_sender(self) -> None:
        """Send the queued reports, forever; keep one that does not arrive, drop a refused one."""
        failures = 0
        while True:
            await self._to_send.wait()
            if not self._unsent:
                self._to_send.clear()
                continue
            measured, report = self._unsent.popleft()
            is_away = False
            try:
                reply = await self._reporter.report(self._as_of_now(measured, report))
            except Unavailable as away:
                if failures == 0:
                    log.warning("the service does not respond; reports are queued: %s", away)
                is_away = True
                failures += 1
                if len(self._unsent) < MAX_QUEUED_REPORTS:
                    self._unsent.appendleft((measured, report))
                else:
                    self.tally.dropped += 1
            except RunaiError as refused:
                # A retry of this report would be refused again: drop it, send the next one.
                failures += 1
                self.tally.dropped += 1
                log.warning("the service refused a report: %s", refused)
            except Exception:
                failures += 1
                self.tally.dropped += 1
                log.exception("reporting failed %d times", failures)
            else:
                if failures:
                    log.warning("the service responds again")
                failures = 0
                self.tally.sent += 1
                self.tally.waiting = len(self._unsent)
                self._set_allocations(reply.allocations)
                continue
            self.tally.waiting = len(self._unsent)
            if is_away or failures > 1:
                await asyncio.sleep(_retry_delay_s(failures))

    def _set_allocations(self, allocations: list[AgentAllocation]) -> None:
        self._allocations = allocations
        if allocations:
            self._allocated.set()


def _retry_delay_s(failures: int) -> float:
    return min(MAX_DELAY_S, 0.25 * 2.0 ** min(failures, 10))
