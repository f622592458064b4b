"""Only sessions without a server known to the hub release their GPUs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.simulated import SimulatedCluster, simulated_cluster
from runai.hub_service.controller.forgotten_sessions import ForgottenSessions
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Unavailable


class FakeHub:
    """A hub that reports active servers by user; None: it does not answer."""

    def __init__(self) -> None:
        self.servers: dict[str, dict[str, Any]] | None = {}

    async def active_servers(self) -> dict[str, dict[str, Any]]:
        if self.servers is None:
            raise Unavailable("The hub is away.")
        return self.servers


def session(name: str, user: str = "ana", server: str = "", **more: Any) -> WorkloadSpec:
    return WorkloadSpec(
        "vision", name, user, "session", more.pop("command", None), server=server, **more
    )


@pytest.fixture
async def cluster() -> SimulatedCluster:
    cluster = simulated_cluster({"lab": SimulatedDevices(2).devices()}, clock=time.time)
    await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(2000)))
    return cluster


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub()


@pytest.fixture
def session_cleanup(cluster, hub) -> ForgottenSessions:
    return ForgottenSessions(cluster, hub.active_servers)


async def remaining_names(cluster: SimulatedCluster) -> list[str]:
    return [record.spec.name for record in await cluster.workloads()]


async def test_session_without_a_notebook_server_is_deleted_at_the_second_check(
    cluster, hub, session_cleanup
):
    await cluster.submit([session("lab-ana")])
    await session_cleanup.check()
    after_first_check = await remaining_names(cluster)
    await session_cleanup.check()

    assert after_first_check == ["lab-ana"]
    assert await remaining_names(cluster) == []


async def test_sessions_with_existing_notebook_servers_are_not_deleted(
    cluster, hub, session_cleanup
):
    hub.servers = {"ana": {"": {"ready": True}, "big": {"pending": "spawn"}}}
    await cluster.submit([session("lab-ana"), session("lab-ana-big", server="big")])
    for _ in range(3):
        await session_cleanup.check()

    assert await remaining_names(cluster) == ["lab-ana", "lab-ana-big"]


async def test_session_is_deleted_if_no_hub_server_matches_its_user_and_server_name(
    cluster, hub, session_cleanup
):
    hub.servers = {"ana": {"": {}}, "bo": {"big": {}}}
    await cluster.submit(
        [session("lab-ana"), session("lab-ana-big", server="big"), session("lab-bo", "bo")]
    )
    for _ in range(2):
        await session_cleanup.check()

    assert await remaining_names(cluster) == ["lab-ana"]


async def test_session_is_retained_when_its_notebook_server_returns_between_checks(
    cluster, hub, session_cleanup
):
    await cluster.submit([session("lab-ana")])
    await session_cleanup.check()
    hub.servers = {"ana": {"": {}}}
    await session_cleanup.check()
    hub.servers = {}
    await session_cleanup.check()

    assert await remaining_names(cluster) == ["lab-ana"]


async def test_unreachable_hub_deletes_no_session(cluster, hub, session_cleanup):
    await cluster.submit([session("lab-ana")])
    await session_cleanup.check()
    hub.servers = None
    for _ in range(3):
        with pytest.raises(Unavailable):
            await session_cleanup.check()

    assert await remaining_names(cluster) == ["lab-ana"]


async def test_jobs_and_command_sessions_without_notebook_server_are_not_deleted(
    cluster, hub, session_cleanup
):
    job = WorkloadSpec("vision", "exp1", "ana", "job", ("true",))
    await cluster.submit([job, session("interactive", command=("bash",))])
    for _ in range(3):
        await session_cleanup.check()

    assert await remaining_names(cluster) == ["exp1", "interactive"]
