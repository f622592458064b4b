"""One life of the service in virtual time: the real cluster, controller, ledger and bookkeeping.

The layers below are faked: processes (`machine`), time, and the disk, where SQLite itself is set
to be full or read-only. A life ends by a crash or when one of its tasks fails, as the real service
ends then; the next life begins from the two databases alone.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from faults.machine import Machine
from faults.meter import Meter, stored_sums
from faults.virtual_time import VirtualLoop, WallClock, abandon
from inline_decisions import Fault, FaultyPipe
from runai.hub_service.clusters.local.local_cluster import local_cluster
from runai.hub_service.clusters.local.local_executor import LocalCluster
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.controller.controller import Controller, Cycle
from runai.hub_service.controller.decision_worker import DecisionWorker
from runai.hub_service.controller.history_recorder import HistoryRecorder, device_allocations
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.cluster import Refused
from runai.hub_service.model.device import Device
from runai.hub_service.scheduler.model.snapshot import Plan, Snapshot
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.reports import AgentReport, DeviceSample, UsageSample

NODE = "box"
AGENT_EVERY_S = 15.0
DEVICES = [Device(i, f"SIM-{i}", "Simulated GPU", 40_000, simulated=True) for i in range(4)]


class Disk:
    """Disk of the databases: `state` is "" (writes succeed), "full" or "read-only"."""

    def __init__(self) -> None:
        self.state = ""
        self.crash_at_statement: int | None = None

    def under(self, engine: sa.Engine, loop: VirtualLoop) -> None:
        """Apply this disk's state to every transaction of a database."""

        def begin(connection: Any) -> None:
            cursor = connection.connection.cursor()
            pages = cursor.execute("PRAGMA page_count").fetchone()[0]
            max_pages = pages if self.state == "full" else 1_000_000
            cursor.execute("PRAGMA synchronous=OFF")  # it is slow, and the machine does not go down
            cursor.execute(f"PRAGMA max_page_count={max_pages}")
            cursor.execute(f"PRAGMA query_only={int(self.state == 'read-only')}")
            cursor.close()

        def statement(*_: object) -> None:
            if loop.dead:
                raise RuntimeError("the process is gone")
            if self.crash_at_statement is not None and loop.is_running():
                self.crash_at_statement -= 1
                if self.crash_at_statement < 0:
                    self.crash_at_statement = None
                    loop.crash()

        sa.event.listen(engine, "begin", begin)
        sa.event.listen(engine, "before_cursor_execute", statement)
        sa.event.listen(engine, "commit", statement)


class UnreliableCluster:
    """Cluster that fails while `is_away` returns True, like an unreachable API server."""

    def __init__(self, cluster: LocalCluster, is_away: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._is_away = is_away

    async def changed(self) -> None:
        await self._cluster.changed()

    async def observe(self) -> Snapshot:
        self._raise_if_away()
        return await self._cluster.observe()

    async def apply(self, plan: Plan) -> Sequence[Refused]:
        self._raise_if_away()
        return await self._cluster.apply(plan)

    def _raise_if_away(self) -> None:
        if self._is_away():
            raise Unavailable("The API server is away.")


class Store(SqliteStore):
    """The real store, which can crash the process right after a save."""

    crash_after_save = False
    loop: VirtualLoop

    def save(self, *args: Any, **kinds: Any) -> None:
        super().save(*args, **kinds)
        if self.crash_after_save:
            self.crash_after_save = False
            self.loop.crash()


class Service:
    """One life of the service, from its start to its crash or end."""

    def __init__(
        self,
        place: Path,
        clock: WallClock,
        machine: Machine,
        disk: Disk,
        on_cycle: Callable[[Cycle], None],
        away: Callable[[str], bool],
    ) -> None:
        self._away = away
        self.loop = VirtualLoop(clock)
        asyncio.set_event_loop(self.loop)
        self.loop.set_exception_handler(self._record_unhandled)
        self.store = Store(place / "cluster.sqlite")
        self.store.loop = self.loop
        self._file = place / "ledger.sqlite"
        initial_sums = stored_sums(self._file)
        self.ledger = Ledger(self._file, clock=clock)
        self._meter = Meter(self.ledger, initial_sums)
        disk.under(self.store._engine, self.loop)
        disk.under(self.ledger._store._engine, self.loop)
        self.cluster = local_cluster(
            place,
            self.store,
            DEVICES,
            NODE,
            clock=clock,
            process_control=machine.process_control(),
            api_url="http://x/",
        )
        self.controller = Controller(
            UnreliableCluster(self.cluster, lambda: away("cluster")),
            DecisionWorker(self._worker),
            on_cycle=on_cycle,
            clock=lambda: clock.true,
        )
        self.worker_fault: Fault = ""
        """Fault of the decision worker at its next request."""
        self.worker_failed: Callable[[], object] = lambda: None
        self._machine = machine
        self.failed: BaseException | None = None

    async def _worker(self) -> FaultyPipe:
        def next_fault() -> Fault:
            fault, self.worker_fault = self.worker_fault, ""
            if fault:
                self.worker_failed()
            return fault

        return FaultyPipe(next_fault)

    async def run(self, *users: Any) -> None:
        """Run all background tasks of the real service until the users are done."""
        self._machine.attach(self.loop)
        bookkeeping = HistoryRecorder(
            self.cluster, self.ledger, self.controller.changes, clock=self._machine.clock
        )
        work: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(coroutine)
            for coroutine in (
                self.cluster.run(),
                self.controller.run(),
                bookkeeping.run(),
                self.ledger.run(),
                self._agent(),
            )
        ]
        people: asyncio.Future[Any] = asyncio.gather(*(user() for user in users))
        await asyncio.wait([*work, people], return_when=asyncio.FIRST_COMPLETED)
        for task in (*work, people):
            if task.done() and (failed := task.exception()) is not None:
                raise failed
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        self.ledger.close()
        self.store.close()

    def _record_unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or context["message"]
        self._machine.violations.append(f"nobody caught: {error!r}")

    async def _agent(self) -> None:
        """Report every 15 s that allocated devices are half busy, unless the agent is away."""
        while True:
            await asyncio.sleep(AGENT_EVERY_S)
            if self._away("agent"):
                continue
            allocations = device_allocations(
                await self.cluster.workloads(), await self.cluster.devices()
            )
            now = self._machine.clock()
            report = half_busy(now, AGENT_EVERY_S, DEVICES, allocations)
            self.ledger.record(now, AGENT_EVERY_S, allocations, report)

    def clean_up(self) -> None:
        """Clean up after a crash: close file descriptors and open transactions."""
        self._machine.attach(None)
        for handle in self.cluster.executor._reconciler._handles.values():
            if handle.status_fd >= 0:
                os.close(handle.status_fd)
        abandon(self.loop)
        if not self.store._connection.closed:  # closed if the crash came at the end of `run`
            self.store._connection.invalidate()  # uncommitted writes are lost
            self.store.close()
        self.ledger._store.close()

    def wrong_sums(self) -> list[str]:
        """Return wrong sums of the ledger at this life's end, in memory and in the database."""
        return [*self._meter.wrong_sums(), *self._meter.wrong_stored_sums(stored_sums(self._file))]


def half_busy(
    at: float, interval: float, devices: Sequence[Device], allocations: Sequence[Any]
) -> AgentReport:
    """Return an agent's report: every device, and each workload on it, is half busy."""
    usage: dict[str, Any] = {"utilization": 0.5, "memory_mib": 1}
    return AgentReport(
        node=NODE,
        at=at,
        interval=interval,
        devices=[DeviceSample(device=device.uuid, **usage) for device in devices],
        samples=[UsageSample(workload=a.workload, device=a.device, **usage) for a in allocations],
    )


def dice_of(seed: int, what: str) -> random.Random:
    """Return a random generator for one purpose, independent of all other draws."""
    return random.Random(f"{seed} {what}")
