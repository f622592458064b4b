"""One hour of a lab with four GPUs: the seed decides users' actions, faults and their times.

`play` plays it in virtual time until every job has ended, and returns a sentence for each violated
invariant; a correct service has none. Replay one seed alone: `pytest tests/faults --seed 17`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from faults import invariants
from faults.machine import Machine
from faults.service import Disk, Service, dice_of
from faults.user_actions import HOUR_S, UserAction, UserActions
from faults.virtual_time import Crash, WallClock
from inline_decisions import Fault
from runai.hub_service.controller.decision_worker import DEADLINE_S
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.errors import Conflict, NotFound, RunaiError, Unavailable

DRAINED_WITHIN_S = 8 * HOUR_S
TRY_AGAIN_S = 2.0


@dataclass
class HourOutcome:
    """Outcome of one hour."""

    violations: list[str]
    crashes: int
    faults: dict[str, int]
    acknowledged: int
    recovered_s: list[float]
    """Virtual seconds from the end of each fault until a cycle was run."""


@dataclass
class Hour:
    """The state that outlives a crash of the service."""

    seed: int
    place: Path
    clock: WallClock = field(default_factory=WallClock)
    disk: Disk = field(default_factory=Disk)
    faults: dict[str, int] = field(default_factory=dict)
    crashes: int = 0
    away: set[str] = field(default_factory=set)
    """Components that do not answer now: `agent`, `cluster`."""
    recovered_s: list[float] = field(default_factory=list)
    recovering_since: float | None = None
    """Time at which the last fault ended, until a cycle is run."""

    def __post_init__(self) -> None:
        self.machine = Machine(self.clock, dice_of(self.seed, "machine"))
        self.users = UserActions(dice_of(self.seed, "people"), self.machine)
        self.checker = invariants.CycleChecker(self.machine)
        self.service: Service | None = None
        self._breakages()

    # -- faults ----------------------------------------------------------------------------------

    def _breakages(self) -> None:
        dice = dice_of(self.seed, "breakages")
        kinds: dict[str, Callable[[], object]] = {
            "crash at an await": lambda: self._crash_after(dice.randint(0, 60)),
            "crash at a statement": lambda: self._crash_at(dice.randint(0, 12)),
            "crash after a write": self._crash_after_save,
            "supervisor killed": self.machine.kill_supervisor,
            "supervisor killed at an end": self.machine.kill_supervisor_at_an_end,
            "supervisor frozen": lambda: self.machine.freeze_supervisor(
                dice.choice([5.0, 60.0, 600.0])
            ),
            "disk full": lambda: self._disk("full", dice.choice([5.0, 60.0, 300.0])),
            "database read-only": lambda: self._disk("read-only", dice.choice([5.0, 60.0])),
            "agent away": lambda: self._make_unavailable("agent", dice.choice([20.0, 200.0])),
            "cluster away": lambda: self._make_unavailable("cluster", dice.choice([5.0, 60.0])),
            "worker dies": lambda: self._worker("dies"),
            "worker late": lambda: self._worker("late"),
            "worker answers twice": lambda: self._worker("twice"),
            "worker answers with another number": lambda: self._worker("another number"),
            "clock jumps an hour on": lambda: self._clock(3600.0),
            "clock jumps an hour back": lambda: self._clock(-3600.0),
        }
        many = [name for name in kinds if name.startswith("crash")] * 3 + [*kinds]
        for _ in range(dice.randint(6, 14)):
            name = dice.choice(many)
            self.faults[name] = self.faults.get(name, 0) + 1
            self.machine.later(dice.uniform(1, HOUR_S), kinds[name])

    def _crash_after(self, steps: int) -> None:
        if self.service is not None:
            self.service.loop.crash_after(steps)

    def _crash_at(self, statements: int) -> None:
        self.disk.crash_at_statement = statements

    def _crash_after_save(self) -> None:
        if self.service is not None:
            self.service.store.crash_after_save = True

    def _disk(self, state: str, seconds: float) -> None:
        self.disk.state = state

        def recover() -> None:
            self.disk.state = ""
            self._mark_recovered()

        self.machine.later(seconds, recover)

    def _make_unavailable(self, component: str, seconds: float) -> None:
        self.away.add(component)

        def restore() -> None:
            self.away.discard(component)
            self._mark_recovered()

        self.machine.later(seconds, restore)

    def _worker(self, fault: Fault) -> None:
        """Let the decision worker fail at its next request; one that is late is replaced."""

        def failed() -> None:
            self.machine.later(DEADLINE_S + 1, self._mark_recovered)

        if self.service is not None:
            self.service.worker_fault, self.service.worker_failed = fault, failed

    def _mark_recovered(self) -> None:
        self.checker.restart_timers()
        self.recovering_since = self.clock.true

    def _clock(self, seconds: float) -> None:
        self.clock.off_s += seconds

    # -- playing ---------------------------------------------------------------------------------

    def play(self) -> HourOutcome:
        """Restart the service after each crash until the hour is played; return the outcome."""
        while True:
            try:
                self._run_service()
                break
            except Crash:
                self._after_a_crash()
            except BaseException:
                self._forget()
                raise
        return HourOutcome(
            self.machine.violations,
            self.crashes,
            self.faults,
            len(self.users.acknowledged),
            self.recovered_s,
        )

    def _run_service(self) -> None:
        self.checker.restart_timers()
        self.service = Service(
            self.place,
            self.clock,
            self.machine,
            self.disk,
            self._on_cycle,
            self.away.__contains__,
        )
        loop = self.service.loop
        loop.run_until_complete(self.service.run(self._act_and_drain))
        self._count()
        self.machine.attach(None)
        asyncio.set_event_loop(None)
        loop.close()

    def _after_a_crash(self) -> None:
        self.crashes += 1
        self._forget()
        dice = dice_of(self.seed, f"downtime {self.crashes}")
        self.machine.sleep(dice.choice([0.1, 1.0, 10.0, 120.0]))
        self.recovering_since = self.clock.true  # the service is started again now

    def _forget(self) -> None:
        if self.service is not None:
            self.service.clean_up()
            self._count()
            self.service = None

    def _count(self) -> None:
        assert self.service is not None
        self.machine.violations += self.service.wrong_sums()

    def _on_cycle(self, _cycle: object) -> None:
        assert self.service is not None
        cluster = self.service.cluster
        records = list(cluster.index.values())
        projects = [project.spec for project in cluster._projects.records()]
        if self.disk.state or self.machine.any_frozen():  # owed projects may have to wait
            self.checker.restart_timers()
        if not self.disk.state and self.recovering_since is not None and not self.away:
            self.recovered_s.append(self.clock.true - self.recovering_since)
            self.recovering_since = None
        self.checker.check(records, projects)

    async def _act_and_drain(self) -> None:
        assert self.service is not None
        service = self.service
        await asyncio.gather(
            *(self._perform(service, action) for action in self.users.actions if not action.done)
        )
        await self._drain(service)
        records = await service.cluster.workloads()
        wrong = invariants.final_violations(records, self.machine, self.users.acknowledged)
        service.ledger._integration.advance(self.clock())
        wrong += invariants.ledger_violations(service.ledger, 4 * self.clock.true)
        self.machine.violations += wrong

    async def _perform(self, service: Service, action: UserAction) -> None:
        await asyncio.sleep(max(0.0, action.at - self.clock.true))
        while not action.done:
            try:
                await action.do(service)
                action.done = True
            except (Conflict, NotFound):
                action.done = True
            except Unavailable:
                await asyncio.sleep(TRY_AGAIN_S)
            except RunaiError as refused:
                self.machine.violations.append(f"refused: {refused}")
                action.done = True

    async def _drain(self, service: Service) -> None:
        for record in await service.cluster.workloads():
            if record.state == "suspended":
                await service.cluster.resume(record.id, by="the end")
        async with asyncio.timeout(DRAINED_WITHIN_S):
            for record in await service.cluster.workloads():
                await self._wait_until_finished(service, record)

    async def _wait_until_finished(self, service: Service, record: WorkloadRecord) -> None:
        with suppress(NotFound):  # deleted
            while not record.state.finished:
                record = await service.cluster.wait(record.id, record)
