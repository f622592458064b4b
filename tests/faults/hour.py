"""One hour of a lab with four GPUs, told by its seed: what people do, what breaks, and when.

`tell` plays it in virtual time, going on until every job has ended, and returns what was wrong as
sentences; none is what it is for. Replay one alone: `pytest tests/faults --seed 17`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from faults import invariants
from faults.machine import Machine, Work
from faults.service import Disk, Service, dice_of
from faults.virtual_time import Crash, WallClock
from runai.hub_service.clusters.records import ProjectSpec, WorkloadRecord, WorkloadSpec
from runai.hub_service.errors import Conflict, NotFound, RunaiError, Unavailable
from runai.hub_service.scheduler.quantity import MilliGpu

HOUR_S = 3600.0
DRAINED_WITHIN_S = 8 * HOUR_S
TRY_AGAIN_S = 2.0
PROJECTS = {"vision": 2000, "nlp": 1000, "audio": 1000}


@dataclass
class Told:
    """What came of an hour."""

    wrong: list[str]
    crashes: int
    faults: dict[str, int]
    acknowledged: int
    recovered_s: list[float]
    """Of each breakage that ended, in virtual time until a cycle was run."""


@dataclass
class Act:
    """Something that a person wants, and goes on wanting until it is done."""

    at: float
    do: Callable[[Service], Awaitable[None]]
    done: bool = False


@dataclass
class Hour:
    """Everything that outlives a crash of the service."""

    seed: int
    place: Path
    clock: WallClock = field(default_factory=WallClock)
    disk: Disk = field(default_factory=Disk)
    acts: list[Act] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    faults: dict[str, int] = field(default_factory=dict)
    crashes: int = 0
    away: set[str] = field(default_factory=set)
    """Who does not answer now."""
    recovered_s: list[float] = field(default_factory=list)
    well_since: float | None = None
    """Since when nothing is broken, while no cycle was run yet."""

    def __post_init__(self) -> None:
        self.dice = dice_of(self.seed, "people")
        self.machine = Machine(self.clock, dice_of(self.seed, "machine"))
        self.watching = invariants.Watching(self.machine)
        self.service: Service | None = None
        self._people()
        self._breakages()

    # -- what people do --------------------------------------------------------------------------

    def _people(self) -> None:
        for name, quota in PROJECTS.items():
            limit = MilliGpu(3000) if name == "audio" else None
            project = ProjectSpec(name, quota=MilliGpu(quota), limit=limit)
            self._wants(0, lambda s, p=project: s.cluster.put_project(p))  # type: ignore[misc]
        names = []
        for number in range(self.dice.randint(12, 24)):
            spec = self._job(number)
            names.append(spec.id)
            self._wants(
                self.dice.uniform(1, 0.7 * HOUR_S),
                lambda s, spec=spec: self._submit(s, spec),  # type: ignore[misc]
            )
        for number in range(self.dice.randint(1, 4)):
            self._wants(
                self.dice.uniform(1, 0.6 * HOUR_S),
                lambda s, n=number: self._session(s, n),  # type: ignore[misc]
            )
        for _ in range(self.dice.randint(0, 4)):
            name, at = self.dice.choice(names), self.dice.uniform(100, HOUR_S)
            self._wants(at, lambda s, n=name: s.cluster.suspend(n, by="ana"))  # type: ignore[misc]
            later = at + self.dice.choice([1.0, 60.0, 600.0])
            self._wants(later, lambda s, n=name: s.cluster.resume(n, by="ana"))  # type: ignore[misc]
        for _ in range(self.dice.randint(0, 2)):
            name = self.dice.choice(names)
            self._wants(
                self.dice.uniform(100, HOUR_S),
                lambda s, n=name: self._delete(s, n),  # type: ignore[misc]
            )
        quota = MilliGpu(self.dice.choice([0, 1000, 3000]))
        changed = ProjectSpec("nlp", quota=quota)
        self._wants(self.dice.uniform(1, HOUR_S), lambda s: s.cluster.put_project(changed))

    def _job(self, number: int) -> WorkloadSpec:
        spec = WorkloadSpec(
            self.dice.choice(list(PROJECTS)),
            f"job-{number}",
            "ana",
            "job",
            ("train",),
            workdir="/",
            gpus=MilliGpu(1000),
            workers=self.dice.choice([1, 1, 1, 2]),
            priority=self.dice.choice([25, 50, 50, 75]),
            grace_seconds=self.dice.choice([1, 5, 10]),
            backoff_limit=self.dice.choice([0, 2]),
        )
        spec = replace(spec, min_workers=spec.workers)
        seconds = self.dice.choice([5.0, 60.0, 300.0, 900.0])
        fails = self.dice.choice([0, 0, 0, 1])
        for index in range(spec.workers):
            obeys = self.dice.random() < 0.9
            self.machine.work[f"{spec.id}-{index}"] = Work(
                seconds, fails, obeys, alone=spec.workers == 1
            )
        return spec

    def _wants(self, at: float, do: Callable[[Service], Awaitable[object]]) -> None:
        async def wanted(service: Service) -> None:
            await do(service)

        self.acts.append(Act(at, wanted))

    async def _submit(self, service: Service, spec: WorkloadSpec) -> None:
        await service.cluster.submit([spec])
        self.acknowledged.add(spec.id)

    async def _delete(self, service: Service, name: str) -> None:
        # Whether it is done is known only when it is answered: until then it may be there or not.
        self.acknowledged.discard(name)
        await service.cluster.delete(name, by="ana")

    async def _session(self, service: Service, number: int) -> None:
        name = f"vision/lab-{number}"
        known = {record.id: record for record in await service.cluster.workloads()}
        if name not in known:
            gpus = MilliGpu(500)
            spec = WorkloadSpec("vision", f"lab-{number}", "ana", "session", None, gpus=gpus)
            spec = replace(spec, preemptible=False)
            await service.cluster.submit([spec])
        record = await service.cluster.workload(name)
        while record.state == "queued":
            record = await service.cluster.wait(name, record)
        if record.state == "starting" and record.workers[0].process is None:
            process = self.machine.begin_session(self.dice.choice([30.0, 600.0, 2000.0]))
            await service.cluster.attach(name, process)

    # -- what breaks -----------------------------------------------------------------------------

    def _breakages(self) -> None:
        dice = dice_of(self.seed, "breakages")
        kinds: dict[str, Callable[[], object]] = {
            "crash at an await": lambda: self._crash_after(dice.randint(0, 60)),
            "crash at a statement": lambda: self._crash_at(dice.randint(0, 12)),
            "crash after a write": self._crash_after_save,
            "supervisor killed": self.machine.kill_supervisor,
            "supervisor killed at an end": self.machine.kill_supervisor_at_an_end,
            "disk full": lambda: self._disk("full", dice.choice([5.0, 60.0, 300.0])),
            "database read-only": lambda: self._disk("read-only", dice.choice([5.0, 60.0])),
            "agent away": lambda: self._leaves("agent", dice.choice([20.0, 200.0])),
            "cluster away": lambda: self._leaves("cluster", dice.choice([5.0, 60.0])),
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

        def well() -> None:
            self.disk.state = ""
            self._is_well()

        self.machine.later(seconds, well)

    def _leaves(self, who: str, seconds: float) -> None:
        self.away.add(who)

        def comes_back() -> None:
            self.away.discard(who)
            self._is_well()

        self.machine.later(seconds, comes_back)

    def _is_well(self) -> None:
        self.watching.begin_anew()
        self.well_since = self.clock.true

    def _clock(self, seconds: float) -> None:
        self.clock.off_s += seconds

    # -- playing ---------------------------------------------------------------------------------

    def tell(self) -> Told:
        """Live as many lives as it takes."""
        while True:
            try:
                self._live()
                break
            except Crash:
                self._after_a_crash()
            except BaseException:
                self._forget()
                raise
        return Told(
            self.machine.violations,
            self.crashes,
            self.faults,
            len(self.acknowledged),
            self.recovered_s,
        )

    def _live(self) -> None:
        self.watching.begin_anew()
        self.service = Service(
            self.place,
            self.clock,
            self.machine,
            self.disk,
            self._on_cycle,
            self.away.__contains__,
        )
        loop = self.service.loop
        loop.run_until_complete(self.service.run(self._everybody))
        self._count()
        self.machine.attach(None)
        asyncio.set_event_loop(None)
        loop.close()

    def _after_a_crash(self) -> None:
        self.crashes += 1
        self._forget()
        dice = dice_of(self.seed, f"downtime {self.crashes}")
        self.machine.sleep(dice.choice([0.1, 1.0, 10.0, 120.0]))
        self.well_since = self.clock.true  # whoever starts it again does so now

    def _forget(self) -> None:
        if self.service is not None:
            self.service.gone()
            self._count()
            self.service = None

    def _count(self) -> None:
        assert self.service is not None
        self.machine.violations += self.service.miscounted()

    def _on_cycle(self, _cycle: object) -> None:
        assert self.service is not None
        cluster = self.service.cluster
        records = [row.record for row in cluster._rows.values()]
        projects = [project.spec for project in cluster._projects.records()]
        if self.disk.state:
            self.watching.begin_anew()
        elif self.well_since is not None and not self.away:
            self.recovered_s.append(self.clock.true - self.well_since)
            self.well_since = None
        self.watching.look(records, projects)

    async def _everybody(self) -> None:
        assert self.service is not None
        service = self.service
        await asyncio.gather(*(self._act(service, act) for act in self.acts if not act.done))
        await self._drained(service)
        records = await service.cluster.workloads()
        wrong = invariants.at_the_end(records, self.machine, self.acknowledged)
        service.ledger._sums.advance(self.clock())
        wrong += invariants.of_the_ledger(service.ledger, 4 * self.clock.true)
        self.machine.violations += wrong

    async def _act(self, service: Service, act: Act) -> None:
        await asyncio.sleep(max(0.0, act.at - self.clock.true))
        while not act.done:
            try:
                await act.do(service)
                act.done = True
            except (Conflict, NotFound):
                act.done = True
            except Unavailable:
                await asyncio.sleep(TRY_AGAIN_S)
            except RunaiError as refused:
                self.machine.violations.append(f"refused: {refused}")
                act.done = True

    async def _drained(self, service: Service) -> None:
        for record in await service.cluster.workloads():
            if record.state == "suspended":
                await service.cluster.resume(record.id, by="the end")
        async with asyncio.timeout(DRAINED_WITHIN_S):
            for record in await service.cluster.workloads():
                await self._finished(service, record)

    async def _finished(self, service: Service, record: WorkloadRecord) -> None:
        with suppress(NotFound):  # deleted
            while not record.state.finished:
                record = await service.cluster.wait(record.id, record)
