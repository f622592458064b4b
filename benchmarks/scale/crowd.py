"""Creation of many nodes and pods at once, and the times of their events from a watch."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.informers.informer import Informer

AT_ONCE = 64
GPU = "nvidia.com/gpu"


class Crowd:
    """Times (monotonic) at which each pod was seen, bound, up, marked for deletion and removed."""

    def __init__(self, api: Api) -> None:
        """Start without a watch; `run` opens it."""
        self._api = api
        self._informer = Informer(api, "/api/v1/pods", self._note, self._note_removed)
        self._changed = asyncio.Event()
        self.seen: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.up: dict[str, float] = {}
        self.terminating: dict[str, float] = {}
        self.removed: dict[str, float] = {}
        self.of_job: dict[str, str] = {}

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._informer.run()

    async def make(self, bodies: Mapping[str, Mapping[str, Any]], kind: str) -> dict[str, float]:
        """Create many objects in namespace `default`; return the time of each answer."""
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        answered: dict[str, float] = {}

        async def one(name: str) -> None:
            await self._api.create(f"{group}/namespaces/default/{kind}", bodies[name])
            answered[name] = time.monotonic()

        await each(bodies, one)
        return answered

    async def until(self, reached: Callable[[], bool], within_s: float = 900) -> None:
        """Wait until a condition is true.

        Raises:
            TimeoutError: the condition is still false after the time limit.
        """
        async with asyncio.timeout(within_s):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    async def nodes(self, count: int, gpus: int) -> None:
        """Create nodes, and wait until kwok reports them ready."""

        async def one(name: str) -> None:
            has = {"cpu": "32", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
            labels = {"kubernetes.io/hostname": name}
            node = {
                "metadata": {"name": name, "labels": labels},
                "status": {"capacity": has, "allocatable": has},
            }
            await self._api.create("/api/v1/nodes", node)

        await each([f"gpu-{number:04}" for number in range(count)], one)
        while True:
            found = (await self._api.get("/api/v1/nodes"))["items"]
            if sum(_is_ready(node) for node in found) == count:
                return
            await asyncio.sleep(1)

    def _note(self, pod: Mapping[str, Any]) -> str:
        now, metadata = time.monotonic(), pod["metadata"]
        name: str = metadata["name"]
        self.seen.setdefault(name, now)
        self.of_job[name] = metadata.get("labels", {}).get("batch.kubernetes.io/job-name", "")
        if pod["spec"].get("nodeName"):
            self.bound.setdefault(name, now)
        if pod["status"].get("phase") == "Running":
            self.up.setdefault(name, now)
        if metadata.get("deletionTimestamp"):
            self.terminating.setdefault(name, now)
        self._changed.set()
        return name

    def _note_removed(self) -> None:
        left = self.terminating.keys() - self.removed.keys()
        there = self._informer.objects
        self.removed.update((n, time.monotonic()) for n in left if f"default/{n}" not in there)
        self._changed.set()


async def each(names: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Run a coroutine for each item, with bounded concurrency."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with turns:
            await act(name)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(one(name))


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")
