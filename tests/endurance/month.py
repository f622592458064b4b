"""A lab over weeks in virtual time: the whole service behind real HTTP, and its users.

Every user submits sweeps of short jobs, reads them in a panel and a list, waits for one, deletes
one, opens a notebook every day; an agent reports, Prometheus scrapes. Processes and time are faked
(`faults`); cluster, controller, both databases, ledger, bookkeeping, idle watch, notifier and API
are the real ones. `play` calls `inspect_month` at intervals, with which a test inspects the month.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import sqlalchemy as sa
from starlette.requests import Request

from faults.machine import Machine, Start, VirtualAttempt, Work
from faults.service import NODE, half_busy
from faults.virtual_time import VirtualLoop, WallClock, abandon
from inline_decisions import inline_scheduler
from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.authentication import SharedTokenAuthenticator, bearer_token
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.metrics import Metrics
from runai.hub_service.api.middleware.request_limits import Allowance, CallerLimits
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.client import AsyncClient
from runai.hub_service.clusters.local.local_cluster import local_cluster
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.history_recorder import HistoryRecorder, device_allocations
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.controller.notifications import Notifier
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.server.listener import Server, listen
from runai.hub_service.wire.errors import NotFound, Unauthenticated
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.workload_request import SubmitRequest

PREFIX = "/services/runai/"
DAY_S = 86_400.0
HOUR_S = 3_600.0


@dataclass(frozen=True)
class Lab:
    """Size of the lab: jobs, days, users, projects, GPUs and intervals."""

    jobs: int
    days: float
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    sweep: int = 200
    """Jobs in one submission."""
    users: int = 20
    projects: int = 4
    gpus: int = 16
    report_every_s: float = 120.0
    notebooks: int = 5
    """Users with a notebook every day, for two hours."""
    inspections: int = 40
    seed: int = 1

    @property
    def people(self) -> Sequence[str]:
        return [f"user-{number}" for number in range(self.users)]

    def project_of(self, user: str) -> str:
        return f"project-{self.people.index(user) % self.projects}"


class Users:
    """Authenticator that accepts the token `<name>-token` of every user."""

    async def actor(self, request: Request) -> Actor:
        name, _, rest = (bearer_token(request) or "").rpartition("-")
        if rest != "token":
            raise Unauthenticated("The token is not known.")
        return Actor(name, admin=name == "root")

    async def person(self, name: str) -> Actor:
        return Actor(name)


class RandomWork(dict[str, Work]):
    """Work of each worker, chosen at random on first access."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    def __missing__(self, worker: str) -> Work:
        work = Work(self._dice.choice([20.0, 60.0, 120.0]), int(self._dice.random() < 0.05))
        self[worker] = work
        return work


class ForgetfulMachine(Machine):
    """A machine that drops reported ends, so that its own memory does not grow."""

    def drop_reported_end(self, start: Start) -> None:
        if start.exit_status is not None:
            self.starts.pop(start.place, None)
            self.work.pop(start.worker, None)


class ForgetfulAttempt(VirtualAttempt):
    """Directory of a start, dropped when its end was read."""

    def forget_environment(self) -> None:
        self._machine.drop_reported_end(self._start)  # type: ignore[attr-defined]


class Month:
    """The service, its machine and its users for the whole time."""

    def __init__(self, lab: Lab, place: Path) -> None:
        self.lab = lab
        self.clock = WallClock()
        self.loop = VirtualLoop(self.clock)
        asyncio.set_event_loop(self.loop)
        self.dice = random.Random(lab.seed)
        self.machine = ForgetfulMachine(self.clock, self.dice)
        self.machine.work = RandomWork(self.dice)
        devices = [
            Device(i, f"SIM-{i}", "Simulated GPU", 40_000, simulated=True) for i in range(lab.gpus)
        ]
        self.devices = devices
        self.store = SqliteStore(place / "cluster.sqlite")
        self.cluster = local_cluster(
            place,
            self.store,
            devices,
            NODE,
            clock=self.clock,
            retention=lab.retention,
            process_control=self.machine.process_control(ForgetfulAttempt),
        )
        self.ledger = Ledger(place / "ledger.sqlite", clock=self.clock)
        for engine in (self.store._engine, self.ledger._store._engine):
            sa.event.listen(engine, "begin", _skip_syncing)
        self.metrics = Metrics()
        scheduler = inline_scheduler()
        self.platform = Platform(
            cluster=self.cluster,
            decision_worker=scheduler,
            controller=Controller(
                self.cluster,
                scheduler,
                on_cycle=self.metrics.count,
                clock=lambda: self.clock.true,
            ),
            ledger=self.ledger,
            idle=IdleWatch(self.cluster, self.ledger),
            authenticator=SharedTokenAuthenticator("hub-token", {NODE: "agent-token"}, Users()),
            prefix=PREFIX,
            version="soak",
            workdir_exists=lambda _: True,
            clock=self.clock,
            caller_limits=CallerLimits(Allowance(0, 200, 256)),
        )
        self.notifier = Notifier(
            self.cluster,
            self.platform.idle.now,
            self.platform.recent,
            [],
            self.platform.controller.changes,
            clock=self.clock,
        )
        self.bookkeeping = HistoryRecorder(
            self.cluster, self.ledger, self.platform.controller.changes, clock=self.clock
        )
        self.submitted = 0

    def play(self, inspect_month: Callable[[Month], None]) -> None:
        """Run the month; `inspect_month` is called at even intervals, and at the end."""
        try:
            self.loop.run_until_complete(self._live(inspect_month))
        except BaseException:
            abandon(self.loop)
            raise
        finally:
            self.machine.attach(None)
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _live(self, inspect_month: Callable[[Month], None]) -> None:
        self.machine.attach(self.loop)
        lab = self.lab
        for number in range(lab.projects):
            quota = MilliGpu(1000 * lab.gpus // lab.projects)
            members = tuple(u for u in lab.people if lab.project_of(u) == f"project-{number}")
            await self.cluster.put_project(
                ProjectSpec(f"project-{number}", quota=quota, members=members)
            )
        listening = await listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}{PREFIX}"
        server = Server(create_app(self.platform, metrics=self.metrics))
        # Not `serve`: it wakes ten times a second, which is 26 million times a month.
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[listening])
        background = [
            asyncio.ensure_future(work)
            for work in (
                self.cluster.run(),
                self.platform.controller.run(),
                self.notifier.run(),
                self.bookkeeping.run(),
                self.ledger.run(),
                self._agent(),
                self._prometheus(),
                *(self._notebooks(user) for user in lab.people[: lab.notebooks]),
            )
        ]
        sweeps = asyncio.ensure_future(self._submit_sweeps(inspect_month))
        await asyncio.wait([*background, sweeps], return_when=asyncio.FIRST_COMPLETED)
        try:
            for task in (*background, sweeps):
                if task.done():
                    task.result()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            self.platform.shutdown.set()
            await server.shutdown(sockets=[listening])
            self.ledger.close()
            self.store.close()

    # -- users, agent and Prometheus -------------------------------------------------------------

    async def _submit_sweeps(self, inspect_month: Callable[[Month], None]) -> None:
        """Start sweep after sweep, each by the next user; call `inspect_month` evenly."""
        lab = self.lab
        sweeps = -(-lab.jobs // lab.sweep)
        every_s = lab.days * DAY_S / sweeps
        inspect_every = max(1, sweeps // lab.inspections)
        async with asyncio.TaskGroup() as people:
            for number in range(sweeps):
                user = lab.people[number % lab.users]
                people.create_task(self._sweep(user, number))
                await asyncio.sleep(every_s)
                if number % inspect_every == inspect_every - 1:
                    inspect_month(self)

    async def _sweep(self, user: str, number: int) -> None:
        async with AsyncClient(self.url, f"{user}-token") as client:
            request = SubmitRequest(
                name=f"sweep-{number}", array=self.lab.sweep, gpus=1, command=["train"], workdir="/"
            )
            reply = await client.submit(request)
            self.submitted += reply.count
            last = reply.ids()[-1]
            panel = aiter(client.events())
            for _ in range(3):
                await anext(panel)
            await panel.aclose()  # type: ignore[attr-defined]
            with suppress(NotFound):  # on a slow machine they are finished and forgotten by now
                workload = await client.workload(last)
                while workload.state not in {"succeeded", "failed"}:
                    workload = await client.wait(last, workload.version, 30)
                await client.workloads()
                await client.delete(reply.ids()[0])
                now = datetime.fromtimestamp(self.clock(), UTC)
                await client.usage(workload=reply.ids()[1])
                await client.usage(project=self.lab.project_of(user), until=now)

    async def _notebooks(self, user: str) -> None:
        """Work two hours of every day in a notebook with a tenth of a GPU."""
        name, project = f"lab-{user}", self.lab.project_of(user)
        async with AsyncClient(self.url, "hub-token") as hub:
            while True:
                await asyncio.sleep(self.dice.uniform(0.7, 0.9) * DAY_S)
                with suppress(NotFound):
                    await hub.delete(f"{project}/{name}")
                request = SubmitRequest(
                    name=name, project=project, kind="session", owner=user, gpus=0.1
                )
                (view,) = (await hub.submit(request)).workloads
                session = await hub.workload(view.id)
                while session.state != "starting":
                    session = await hub.wait(view.id, session.version, 30)
                process = self.machine.begin_session(2 * HOUR_S)
                await hub.attach(view.id, ProcessReport(pid=process.pid, created=process.created))
                await asyncio.sleep(3 * HOUR_S)

    async def _agent(self) -> None:
        async with AsyncClient(self.url, "agent-token") as client:
            while True:
                await asyncio.sleep(self.lab.report_every_s)
                await client.report(
                    half_busy(
                        self.clock(),
                        self.lab.report_every_s,
                        self.devices,
                        device_allocations(
                            await self.cluster.workloads(), await self.cluster.devices()
                        ),
                    )
                )

    async def _prometheus(self) -> None:
        while True:
            await asyncio.sleep(HOUR_S)
            headers = {"Authorization": "Bearer root-token"}
            async with httpx.AsyncClient(base_url=self.url, headers=headers) as client:
                (await client.get("metrics")).raise_for_status()


def _skip_syncing(connection: sa.Connection) -> None:
    """Do not wait for the disk: syncing is slow, and the machine does not go down."""
    connection.exec_driver_sql("PRAGMA synchronous=OFF")
