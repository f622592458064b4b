"""The service in a test's own process: uvicorn, controller and ledger over a cluster.

Assembled like `runai.hub_service.__main__`, but a table of tokens replaces JupyterHub's
authentication. `serving` runs it in the caller's event loop, `running_service` in a thread, over a
local cluster with simulated GPUs.

Hundreds of tests start one. A migration takes 0.1 s, so ledgers begin migrated; uvicorn's shutdown
takes 0.2 s, or 1.2 s if a stream is open, so `stop_server` replaces it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from starlette.requests import Request

from inline_decisions import inline_scheduler
from runai.hub_service.agent.devices.sources import open_devices
from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.authentication import Authenticator, bearer_token
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.metrics import Metrics
from runai.hub_service.api.services.former_members import FormerMembers
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.local.local_executor import LocalCluster
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.history_recorder import HistoryRecorder
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.ledger import Ledger
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.device import NodeCapacity
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.server.listener import Server, listen
from runai.hub_service.server.local_service import is_directory
from runai.hub_service.wire.errors import NotFound, Unauthenticated

NODE = "box"
PREFIX = "/services/runai/"
START_SECONDS = 120


class TokenTable:
    """An authenticator that accepts `<name>-token` for each actor."""

    def __init__(self, actors: dict[str, Actor]) -> None:
        self.actors = actors

    async def actor(self, request: Request) -> Actor:
        name = (bearer_token(request) or "").removesuffix("-token")
        if name not in self.actors:
            raise Unauthenticated("The token is not known.", hint="Run `runai login`.")
        return self.actors[name]

    async def person(self, name: str) -> Actor:
        if name not in self.actors:
            raise NotFound(f"There is no user {name}.")
        return self.actors[name]


@asynccontextmanager
async def serving(
    cluster: Cluster,
    projects: Sequence[ProjectSpec],
    authenticator: Authenticator,
    ledger_file: Path,
    listening: socket.socket,
    *,
    version: str,
    stops_quickly: bool = True,
) -> AsyncGenerator[Platform]:
    """Serve the API over a cluster for the block.

    `stops_quickly=False`: clients of a stream are notified of its end, as in production.
    """
    for spec in projects:
        await cluster.put_project(spec)
    metrics = Metrics()
    ledger = migrated_ledger(ledger_file)
    members = FormerMembers(cluster, authenticator.person)
    scheduler = inline_scheduler()
    controller = Controller(cluster, scheduler, on_cycle=metrics.count, members=members.marked)
    platform = Platform(
        cluster=cluster,
        controller=controller,
        decision_worker=scheduler,
        ledger=ledger,
        idle=IdleWatch(cluster, ledger),
        authenticator=authenticator,
        former_members=members,
        prefix=PREFIX,
        version=version,
        workdir_exists=is_directory,
    )
    server = Server(create_app(platform, metrics=metrics))
    try:
        async with asyncio.TaskGroup() as tasks:
            work = [
                tasks.create_task(cluster.run()),
                tasks.create_task(controller.run()),
                tasks.create_task(HistoryRecorder(cluster, ledger, controller.changes).run()),
                tasks.create_task(ledger.run()),
            ]
            answering = tasks.create_task(server.serve(sockets=[listening]))
            try:
                yield platform
            finally:
                if stops_quickly:
                    platform.shutdown.set()
                    await stop_server(server, answering)
                else:
                    server.stop()
                    await answering
                for task in work:
                    task.cancel()
    finally:
        ledger.close()


def migrated_ledger(file: Path) -> Ledger:
    """Open a ledger; a missing file begins as a copy of a migrated one."""
    if not file.exists():
        file.write_bytes(_empty())
    return Ledger(file)


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "empty.sqlite"
        LedgerStore(file).close()
        return file.read_bytes()


TURNS_UNTIL_ACCEPTED = 3
"""Turns of the event loop between a client's connection and the server's accepting it."""


async def stop_server(server: Server, answering: asyncio.Task[None]) -> None:
    """Stop a server and cancel its open requests.

    asyncio loses connections that it accepts while the listener closes (github.com/python/cpython,
    issue 109564): the listeners stop accepting first.
    """
    loop = asyncio.get_running_loop()
    for listener in server.servers:
        for listening in listener.sockets:
            loop.remove_reader(listening.fileno())
    for _ in range(TURNS_UNTIL_ACCEPTED):
        await asyncio.sleep(0)
    for listener in server.servers:
        listener.close()
    for connection in [*server.server_state.connections]:
        connection.transport.abort()
    open_requests = [*server.server_state.tasks]
    for task in [answering, *open_requests]:
        task.cancel()
    await asyncio.gather(answering, *open_requests, return_exceptions=True)


@dataclass
class RunningService:
    """A running service: its address, and each user's token."""

    tokens: Mapping[str, str]
    port: int
    """0: any free port, known once the service is ready."""
    url: str = ""
    platform: Platform | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


@contextmanager
def running_service(
    data_dir: Path,
    actors: Sequence[Actor],
    projects: Sequence[ProjectSpec],
    *,
    gpus: int,
    port: int = 0,
    leaves_jobs: bool = False,
) -> Iterator[RunningService]:
    """Run a service for the block; remove everything it started unless jobs shall go on."""
    service = RunningService({actor.name: f"{actor.name}-token" for actor in actors}, port)
    users = TokenTable({actor.name: actor for actor in actors})
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        try:
            # asyncio.Runner cancels the remaining tasks on exit and waits for them.
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(_serve(service, users, data_dir, projects, gpus, stop, leaves_jobs))
        except BaseException as failure:  # noqa: BLE001 - handed to the test's thread
            service.failure = failure
        finally:
            service.ready.set()

    thread = threading.Thread(target=run, name="service")
    thread.start()
    try:
        assert service.ready.wait(START_SECONDS)
        if service.failure is not None:
            raise service.failure
        yield service
    finally:
        if service.failure is None:
            loop.call_soon_threadsafe(stop.set)
        thread.join()
    if service.failure is not None:
        raise service.failure


async def _serve(
    service: RunningService,
    users: TokenTable,
    data_dir: Path,
    projects: Sequence[ProjectSpec],
    gpus: int,
    stop: asyncio.Event,
    leaves_jobs: bool,
) -> None:
    listening = await listen("127.0.0.1", service.port)
    service.port = listening.getsockname()[1]
    service.url = f"http://127.0.0.1:{service.port}{PREFIX}"
    devices = open_devices("auto", gpus, node=NODE).devices()
    capacity = NodeCapacity(8000 * len(devices))
    async with (
        open_local_cluster(
            data_dir, devices, NODE, api_url=service.url, capacity=capacity
        ) as cluster,
        serving(
            *(cluster, projects, users, data_dir / "ledger.sqlite", listening),
            version="0.1.0",
            stops_quickly=not leaves_jobs,
        ) as platform,
    ):
        service.platform = platform
        service.ready.set()
        await stop.wait()
        if not leaves_jobs:
            await _end_all(cluster, platform.controller)


async def _end_all(cluster: LocalCluster, controller: Controller) -> None:
    """Stop the jobs that the test left running: jobs outlive a service on purpose."""
    while left := await cluster.workloads():
        for record in left:
            await cluster.delete(record.id, by="test")
        version = controller.changes.version
        try:
            async with asyncio.timeout(0.2):
                await controller.changes.newer_than(version)
        except TimeoutError:
            continue
