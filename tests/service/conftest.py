"""Fixtures of the service's tests.

    platform_on   serve the API over any cluster: `async with platform_on(cluster) as served`
    simulated     the API over a SimulatedCluster: real HTTP, workloads without processes
    served        the API over a LocalCluster with five simulated GPUs, real processes, real HTTP
    ana … agent   clients of the cast (below), each with its own token
    make_authenticator  (url, token) -> an authenticator that asks the hub there

The cast: ana and mia are members of vision, vic its admin, nel a member of nlp by the group
nlp-people, root a hub admin, out and fin in no project, ro a member of vision with a read-only
token.
ana-reads, vic-reads, nel-reads and root-reads are read-only tokens of ana, vic, nel and root;
root-notebook is the token of root's notebook. hub and agent are the platform's own processes.
Projects: vision (quota 2.5, limit 4) and nlp (quota 2.5, build quota 1).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from in_process_service import PREFIX, TokenTable, serving
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.api.auth.authentication import SharedTokenAuthenticator
from runai.hub_service.api.auth.hub_auth import HubAuthenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.client import AsyncClient
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.model.cluster import Cluster
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.server.listener import listen
from runai.hub_service.server.settings import Config
from service_process import Service
from waiting import eventually_async

CAST = {
    "ana": Actor("ana"),
    "mia": Actor("mia"),
    "vic": Actor("vic"),
    "nel": Actor("nel", groups=frozenset({"nlp-people"})),
    "root": Actor("root", admin=True),
    "out": Actor("out"),
    "fin": Actor("fin"),
    "ro": Actor("ro", may_write=False),
    "worker": Actor("lab/vision-exp1-0-x7x7x", "worker"),
}
CAST["root-notebook"] = Actor("root", admin_elsewhere=True)
CAST |= {
    f"{name}-reads": replace(CAST[name], may_write=False) for name in ("ana", "vic", "nel", "root")
}

PROJECTS = (
    ProjectSpec(
        "vision",
        quota=MilliGpu(2500),
        limit=MilliGpu(4000),
        members=("ana", "mia", "ro"),
        admins=("vic",),
    ),
    ProjectSpec("nlp", quota=MilliGpu(2500), build_quota=MilliGpu(1000), groups=("nlp-people",)),
)


@dataclass
class Served:
    """A running platform, its URL and its clients."""

    platform: Platform
    url: str
    clients: AsyncExitStack

    async def client(self, name: str) -> AsyncClient:
        token = f"{name}-token" if name else ""
        return await self.clients.enter_async_context(AsyncClient(self.url, token, patience_s=0.0))

    def http(self, name: str = "", **headers: str) -> httpx.AsyncClient:
        """Return a plain HTTP client with the named actor's token, or without one."""
        token = {"Authorization": f"Bearer {name}-token"} if name else {}
        # No connection is encrypted here, and loading this machine's certificates is slow.
        return httpx.AsyncClient(
            base_url=self.url, headers=headers | token, timeout=60, verify=False
        )


PlatformOn = Callable[[Cluster], AbstractAsyncContextManager[Served]]


@pytest.fixture
def platform_on(tmp_path: Path) -> PlatformOn:
    @asynccontextmanager
    async def serve(cluster: Cluster) -> AsyncGenerator[Served]:
        authenticator = SharedTokenAuthenticator(
            "hub-token", {"lab": "agent-token"}, TokenTable(dict(CAST))
        )
        listening = await listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}{PREFIX}"
        ledger = tmp_path / "ledger.sqlite"
        async with (
            serving(
                cluster, PROJECTS, authenticator, ledger, listening, version="test"
            ) as platform,
            AsyncExitStack() as clients,
        ):
            yield Served(platform, url, clients)

    return serve


@pytest.fixture
async def served(platform_on: PlatformOn, tmp_path: Path) -> AsyncIterator[Served]:
    devices = SimulatedDevices(5, node="lab").devices()
    opened = open_local_cluster(tmp_path / "data", devices, "lab")
    async with opened as cluster, platform_on(cluster) as running:
        yield running
        # Leave no process of a test behind.
        for record in await cluster.workloads():
            await cluster.delete(record.id, by="the test")
        await eventually_async(partial(_is_empty, cluster))


async def _is_empty(cluster: Cluster) -> bool:
    return not await cluster.workloads()


@pytest.fixture
async def ana(served: Served) -> AsyncClient:
    return await served.client("ana")


@pytest.fixture
async def vic(served: Served) -> AsyncClient:
    return await served.client("vic")


@pytest.fixture
async def nel(served: Served) -> AsyncClient:
    return await served.client("nel")


@pytest.fixture
async def root(served: Served) -> AsyncClient:
    return await served.client("root")


@pytest.fixture
async def hub(served: Served) -> AsyncClient:
    return await served.client("hub")


@pytest.fixture
async def agent(served: Served) -> AsyncClient:
    return await served.client("agent")


@pytest.fixture
async def simulated(platform_on: PlatformOn) -> AsyncIterator[Served]:
    devices = SimulatedDevices(5, node="lab").devices()
    async with platform_on(simulated_cluster({"lab": devices}, clock=time.time)) as running:
        yield running


@pytest.fixture
async def make_authenticator() -> AsyncIterator[Callable[..., HubAuthenticator]]:
    authenticators: list[HubAuthenticator] = []

    def make(api_url: str, token: str = "unused") -> HubAuthenticator:
        settings = Config.from_environment(
            {
                "RUNAI_DATA_DIR": "/unused",
                "RUNAI_HUB_TOKEN": "unused",
                "JUPYTERHUB_API_URL": api_url,
                "JUPYTERHUB_API_TOKEN": token,
            }
        ).hub
        assert settings is not None
        authenticators.append(HubAuthenticator(settings, prefix=PREFIX, secret="of the tests"))
        return authenticators[-1]

    yield make
    for authenticator in authenticators:
        await authenticator.close()


@pytest.fixture
def service(tmp_path: Path, free_port: Callable[[], int]) -> Generator[Service]:
    service = Service(tmp_path, free_port())
    yield service
    service.clean()
