"""A real service in a thread of the tests: uvicorn, controller, local cluster, simulated GPUs.

Assembled like `runai.hub_service.__main__`, but a table of tokens replaces JupyterHub's
authentication. For the fixtures of the command line's tests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request

from fast_service import migrated_ledger, stop_server
from inline_decisions import inline_scheduler
from runai.hub_service.agent.devices.sources import open_devices
from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.authentication import bearer_token
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.services.former_members import FormerMembers
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.clusters.local.local_cluster import LocalCluster
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.history_recorder import HistoryRecorder
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.model.device import NodeCapacity
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.server.listener import Server, listen
from runai.hub_service.server.local_service import is_directory
from runai.hub_service.wire.errors import NotFound, Unauthenticated

NODE = "box"
PREFIX = "/services/runai/"
START_SECONDS = 120


@dataclass
class RunningService:
    """A running service: its address, and each user's token."""

    tokens: Mapping[str, str]
    port: int
    """0: any free port, known once the service is ready."""
    leaves_jobs: bool
    """Whether jobs go on when the service ends, as in production."""
    url: str = ""
    platform: Platform | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None


class _TokenTable:
    """Authentication of users by a table of tokens."""

    def __init__(self, actors: Sequence[Actor], tokens: Mapping[str, str]) -> None:
        self._by_token = {tokens[actor.name]: actor for actor in actors}

    async def actor(self, request: Request) -> Actor:
        known = self._by_token.get(bearer_token(request) or "")
        if known is None:
            raise Unauthenticated("The token is not known.", hint="Run `runai login`.")
        return known

    async def person(self, name: str) -> Actor:
        known = next((a for a in self._by_token.values() if a.name == name), None)
        if known is None:
            raise NotFound(f"There is no user {name}.")
        return known


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
    """Run a service for the block; remove everything it started unless asked not to."""
    tokens = {actor.name: f"token-of-{actor.name}" for actor in actors}
    service = RunningService(tokens, port, leaves_jobs)
    users = _TokenTable(actors, service.tokens)
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        try:
            # asyncio.Runner cancels the remaining tasks on exit and waits for them.
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(_serve(service, users, data_dir, projects, gpus, stop))
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
    users: _TokenTable,
    data_dir: Path,
    projects: Sequence[ProjectSpec],
    gpus: int,
    stop: asyncio.Event,
) -> None:
    listening = await listen("127.0.0.1", service.port)
    service.port = listening.getsockname()[1]
    url = f"http://127.0.0.1:{service.port}{PREFIX}"
    devices = open_devices("auto", gpus, node=NODE).devices()
    capacity = NodeCapacity(8000 * len(devices))
    opened = LocalCluster.open(data_dir, devices, NODE, api_url=url, capacity=capacity)
    async with opened as cluster:
        for spec in projects:
            await cluster.put_project(spec)
        ledger = migrated_ledger(data_dir / "ledger.sqlite")
        members = FormerMembers(cluster, users.person)
        scheduler = inline_scheduler()
        controller = Controller(cluster, scheduler, members=members.marked)
        platform = Platform(
            cluster=cluster,
            controller=controller,
            decision_worker=scheduler,
            ledger=ledger,
            idle=IdleWatch(cluster, ledger),
            authenticator=users,
            former_members=members,
            prefix=PREFIX,
            version="0.1.0",
            workdir_exists=is_directory,
        )
        server = Server(create_app(platform))
        async with asyncio.TaskGroup() as tasks:
            loops = [
                tasks.create_task(cluster.run()),
                tasks.create_task(controller.run()),
                tasks.create_task(HistoryRecorder(cluster, ledger, controller.changes).run()),
                tasks.create_task(ledger.run()),
            ]
            serving = tasks.create_task(server.serve(sockets=[listening]))
            service.url, service.platform = url, platform
            service.ready.set()
            await stop.wait()
            if not service.leaves_jobs:
                await _end_all(cluster, controller)
                await stop_server(server, serving)
            else:  # as in production: clients of a stream are notified of its end
                server.stop()
                await serving
            for task in loops:
                task.cancel()
        ledger.close()


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
