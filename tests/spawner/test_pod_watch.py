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

FAILED = {"phase": "Failed"}
RUNNING = {"phase": "Running"}
DELETED = "The session was deleted while it waited."


class Start:
    """A started server, and the cache of pods that its spawner reads."""

    def __init__(self) -> None:
        self.spawner: Any = RunaiKubeSpawner(_mock=True)
        self.spawner._pod_uid = "new"
        self._cache = SimpleNamespace(pods={}, first_load_future=asyncio.Future())
        self._cache.first_load_future.set_result(None)
        self.spawner.reflectors[self.spawner._get_reflector_key("pods")] = self._cache

    def show(self, uid: str, status: dict[str, Any]) -> None:
        pod = {"metadata": {"uid": uid}, "spec": {"nodeName": "gpu-0"}, "status": status}
        self._cache.pods[f"{self.spawner.namespace}/{self.spawner.pod_name}"] = pod

    def empty(self) -> None:
        self._cache.pods.clear()

    def reload(self) -> None:
        """Empty the cache, as KubeSpawner does when it starts its watch anew."""
        self.empty()
        self._cache.first_load_future = asyncio.Future()


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    begun = Start()
    yield begun
    begun.spawner.reflectors.clear()


async def test_old_pod_of_the_same_name_says_nothing_of_a_start(start: Start):
    start.show("old", FAILED)

    assert start.spawner._look() == PodStart()


async def test_start_ends_when_another_pod_replaces_its_own(start: Start):
    start.show("new", RUNNING)
    start.spawner._look()
    start.show("another", RUNNING)

    with pytest.raises(SessionRefused, match=DELETED):
        start.spawner._look()


async def test_start_goes_on_until_its_pod_is_shown(start: Start):
    assert start.spawner._look() == PodStart()


async def test_start_ends_when_its_pod_is_gone(start: Start):
    start.show("new", RUNNING)
    start.spawner._look()
    start.empty()

    with pytest.raises(SessionRefused, match=DELETED):
        start.spawner._look()


async def test_start_goes_on_while_the_watch_of_pods_is_started_anew(start: Start):
    start.show("new", RUNNING)
    seen = start.spawner._look()
    start.reload()

    assert start.spawner._look() == seen


async def test_pod_is_not_polled_before_its_watch_has_told_the_end(start: Start):
    """KubeSpawner's poll deletes a pod that has ended."""
    start.show("new", RUNNING)
    watch = asyncio.ensure_future(start.spawner._watch_pod())
    await asyncio.wait({watch}, timeout=0)
    await asyncio.wait({watch}, timeout=0)
    start.show("new", FAILED)

    assert await start.spawner.poll() is None
    with pytest.raises(SessionRefused, match="Your server ended before it answered"):
        await watch
