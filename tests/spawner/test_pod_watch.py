"""The watch of a start's pod, where the informer's cache is late, early or empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from runai.spawner.admission import SessionRefused
from runai.spawner.kubernetes import RunaiKubeSpawner
from runai.spawner.pod import PodStart

pytestmark = pytest.mark.usefixtures("kubeconfig")

FAILED_STATUS = {"phase": "Failed"}
RUNNING_STATUS = {"phase": "Running"}
DELETION_MESSAGE = "The session was deleted while it waited."


class StartingServer:
    """A started server, and the cache of pods that its spawner reads."""

    def __init__(self) -> None:
        self.spawner: Any = RunaiKubeSpawner(_mock=True)
        self.spawner._pod_uid = "new"
        self._cache = SimpleNamespace(pods={}, first_load_future=asyncio.Future())
        self._cache.first_load_future.set_result(None)
        self.spawner.reflectors[self.spawner._get_reflector_key("pods")] = self._cache

    def set_pod(self, uid: str, status: dict[str, Any]) -> None:
        pod = {"metadata": {"uid": uid}, "spec": {"nodeName": "gpu-0"}, "status": status}
        self._cache.pods[f"{self.spawner.namespace}/{self.spawner.pod_name}"] = pod

    def clear_pods(self) -> None:
        self._cache.pods.clear()

    def reload(self) -> None:
        """Empty the cache, as KubeSpawner does when it starts its watch anew."""
        self.clear_pods()
        self._cache.first_load_future = asyncio.Future()


@pytest.fixture
async def server() -> AsyncIterator[StartingServer]:
    starting_server = StartingServer()
    yield starting_server
    starting_server.spawner.reflectors.clear()


async def test_server_start_ignores_an_old_pod_of_the_same_name(server: StartingServer):
    server.set_pod("old", FAILED_STATUS)

    assert server.spawner._update_pod_start() == PodStart()


async def test_server_start_is_refused_once_a_new_pod_replaces_its_pod(server: StartingServer):
    server.set_pod("new", RUNNING_STATUS)
    server.spawner._update_pod_start()
    server.set_pod("another", RUNNING_STATUS)

    with pytest.raises(SessionRefused, match=DELETION_MESSAGE):
        server.spawner._update_pod_start()


async def test_server_start_continues_while_its_pod_is_not_cached_yet(server: StartingServer):
    assert server.spawner._update_pod_start() == PodStart()


async def test_server_start_is_refused_once_its_pod_is_deleted(server: StartingServer):
    server.set_pod("new", RUNNING_STATUS)
    server.spawner._update_pod_start()
    server.clear_pods()

    with pytest.raises(SessionRefused, match=DELETION_MESSAGE):
        server.spawner._update_pod_start()


async def test_server_start_continues_while_the_pod_watch_restarts(server: StartingServer):
    server.set_pod("new", RUNNING_STATUS)
    pod_start = server.spawner._update_pod_start()
    server.reload()

    assert server.spawner._update_pod_start() == pod_start


async def test_server_poll_does_not_delete_an_ended_pod_before_its_watch_reports_it(
    server: StartingServer,
):
    """KubeSpawner's poll deletes a pod that has ended."""
    server.set_pod("new", RUNNING_STATUS)
    watch = asyncio.ensure_future(server.spawner._watch_pod())
    for _ in range(2):  # turns of the loop, in which the watch begins
        await asyncio.wait({watch}, timeout=0)
    server.set_pod("new", FAILED_STATUS)

    assert await server.spawner.poll() is None
    with pytest.raises(SessionRefused, match="Your server ended before it answered"):
        await watch
