"""Random actions of users in an hour: jobs, arrays, sessions, suspensions and deletions."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from faults.machine import Machine, Work
from faults.service import Service
from runai.hub_service.model.arrays import element_id
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

HOUR_S = 3600.0
PROJECTS = {"vision": 2000, "nlp": 1000, "audio": 1000}
MAX_GPUS = 4000


@dataclass
class UserAction:
    """One request of a user, repeated until it is done."""

    at: float
    do: Callable[[Service], Awaitable[object]]
    done: bool = False


class UserActions:
    """All actions of the users, and the IDs of their acknowledged workloads."""

    def __init__(self, dice: random.Random, machine: Machine) -> None:
        self._dice = dice
        self._machine = machine
        self.actions: list[UserAction] = []
        self.acknowledged: set[str] = set()
        for name, quota in PROJECTS.items():
            limit = MilliGpu(3000) if name == "audio" else None
            self._change(0, ProjectSpec(name, quota=MilliGpu(quota), limit=limit))
        names = self._jobs()
        self._arrays()
        self._sessions()
        self._suspensions_and_deletions(names)
        quota = MilliGpu(dice.choice([0, 1000, 3000]))
        self._change(dice.uniform(1, HOUR_S), ProjectSpec("nlp", quota=quota))
        lowered = ProjectSpec("audio", quota=MilliGpu(1000), limit=MilliGpu(2000))
        self._change(dice.uniform(1, HOUR_S), lowered)

    def _schedule(self, at: float, do: Callable[[Service], Awaitable[object]]) -> None:
        self.actions.append(UserAction(at, do))

    def _change(self, at: float, project: ProjectSpec) -> None:
        self._schedule(at, lambda service: service.cluster.put_project(project))

    # -- jobs ------------------------------------------------------------------------------------

    def _jobs(self) -> list[str]:
        names = []
        for number in range(self._dice.randint(12, 24)):
            spec = self._job(number)
            names.append(spec.id)
            self._schedule(self._dice.uniform(1, 0.7 * HOUR_S), partial(self._submit, [spec]))
        return names

    def _job(self, number: int) -> WorkloadSpec:
        dice = self._dice
        elastic = dice.random() < 0.2
        spec = WorkloadSpec(
            dice.choice(list(PROJECTS)),
            f"job-{number}",
            "ana",
            "job",
            ("train",),
            workdir="/",
            gpus=MilliGpu(1000),
            # An elastic job grows onto idle devices and shrinks by a restart.
            elastic=elastic,
            gpus_max=MilliGpu(MAX_GPUS if elastic else 0),
            workers=1 if elastic else dice.choice([1, 1, 1, 2]),
            priority=dice.choice([25, 50, 50, 75]),
            grace_seconds=dice.choice([1, 5, 10]),
            backoff_limit=dice.choice([0, 2]),
            max_runtime=dice.choice([None, None, None, 400]),
        )
        spec = replace(spec, min_workers=spec.workers)
        seconds = dice.choice([5.0, 60.0, 300.0, 900.0])
        fails = dice.choice([0, 0, 0, 1])
        for index in range(spec.workers):
            obeys = dice.random() < 0.9
            self._machine.work[f"{spec.id}-{index}"] = Work(
                seconds, fails, obeys, alone=spec.workers == 1
            )
        return spec

    def _arrays(self) -> None:
        for number in range(self._dice.randint(0, 1)):
            project, size = self._dice.choice(list(PROJECTS)), self._dice.choice([3, 10, 40])
            spec = WorkloadSpec(
                project, f"array-{number}", "ana", "job", ("train",), workdir="/",
                gpus=MilliGpu(250), grace_seconds=1, backoff_limit=2, array=size,
            )  # fmt: skip
            for index in range(size):
                self._machine.work[f"{spec.id}-{index}-0"] = Work(self._dice.choice([1.0, 5.0]))
            self._schedule(self._dice.uniform(1, 0.5 * HOUR_S), partial(self._submit_array, spec))

    async def _submit(self, specs: list[WorkloadSpec], service: Service) -> None:
        await service.cluster.submit(specs)
        self.acknowledged |= {spec.id for spec in specs}

    async def _submit_array(self, spec: WorkloadSpec, service: Service) -> None:
        names = await service.cluster.names()
        element_ids = {element_id(spec.id, index) for index in range(spec.array or 0)}
        existing = {workload for workload in element_ids if workload in names}
        if existing and existing != element_ids:
            self._machine.violations.append(
                f"of {len(element_ids)} in an array {len(existing)} are there"
            )
        await service.cluster.submit([spec])
        self.acknowledged |= element_ids

    # -- sessions --------------------------------------------------------------------------------

    def _sessions(self) -> None:
        for number in range(self._dice.randint(1, 4)):
            at = self._dice.uniform(1, 0.6 * HOUR_S)
            self._schedule(at, partial(self._session, number))
            if self._dice.random() < 0.5:
                self._schedule(at + self._dice.uniform(5, 600), partial(self._release, number))
                later = at + self._dice.uniform(600, 1200)
                self._schedule(later, partial(self._regain, number))

    async def _session(self, number: int, service: Service) -> None:
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
            process = self._machine.begin_session(self._dice.choice([30.0, 600.0, 2000.0]))
            await service.cluster.attach(name, process)

    async def _release(self, number: int, service: Service) -> None:
        await service.cluster.release(f"vision/lab-{number}", why="ana gives its GPUs back")

    async def _regain(self, number: int, service: Service) -> None:
        await service.cluster.regain(f"vision/lab-{number}", by="ana")

    # -- suspensions and deletions ---------------------------------------------------------------

    def _suspensions_and_deletions(self, names: list[str]) -> None:
        dice = self._dice
        for _ in range(dice.randint(0, 4)):
            name, at = dice.choice(names), dice.uniform(100, HOUR_S)
            self._schedule(at, lambda s, n=name: s.cluster.suspend(n, by="ana"))  # type: ignore[misc]
            later = at + dice.choice([1.0, 60.0, 600.0])
            self._schedule(later, lambda s, n=name: s.cluster.resume(n, by="ana"))  # type: ignore[misc]
        for _ in range(dice.randint(0, 2)):
            self._schedule(dice.uniform(100, HOUR_S), partial(self._delete, dice.choice(names)))

    async def _delete(self, name: str, service: Service) -> None:
        # The job may be there or not until the deletion is answered.
        self.acknowledged.discard(name)
        await service.cluster.delete(name, by="ana")
