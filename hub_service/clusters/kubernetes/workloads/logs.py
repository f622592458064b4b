"""Logs of a workload's pods from the kubelets, across attempts and pauses.

Pods are followed as they come and go. A log is deleted with its pod, so only followers get the logs
of earlier attempts. The kubelet serves the newest file of a log, without a sign of older ones.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.events.pod_conditions import pod_path
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.model.cluster import LineCutter, LogChunk
from runai.hub_service.model.records import ACTIVE, WorkloadRecord
from runai.hub_service.wire.program_schemas import MissingOutput

MOST_WAITING = 100
"""Maximum pieces read but not yet yielded, each 64 KiB or one long line."""


@dataclass(frozen=True, slots=True)
class LogSources:
    """Pods and state of a workload at one moment."""

    record: WorkloadRecord
    pods: Sequence[Pod]
    change: asyncio.Event
    """Set when the state may have changed."""

    @property
    def attempt(self) -> int:
        """Return the number of the latest start."""
        return max(1, self.record.attempts)

    def of(self, worker: int | None) -> list[Pod]:
        """Return the pods that have started, of one worker or all, oldest first."""
        begun = [p for p in self.pods if p.is_up or p.is_finished]
        chosen = [p for p in begun if worker in (None, _index(p))]
        return sorted(chosen, key=lambda pod: (pod.created, _index(pod), pod.name))

    def missing(self, worker: int | None) -> list[LogChunk]:
        """Return a gap for each worker that lacks a pod of an earlier start."""
        spec = self.record.spec
        if spec.elastic:
            return []  # a worker may have joined after the first start
        is_active = any(one.state in ACTIVE for one in self.record.workers)
        readable = Counter(
            _index(pod) for pod in self.of(worker) if pod.is_finished or not is_active
        )
        return [
            LogChunk(index, self.attempt, b"", MissingOutput())
            for index in range(spec.workers)
            if worker in (None, index) and readable[index] < self.record.attempts - is_active
        ]


async def read(
    api: Api, sources: LogSources, *, worker: int | None, tail: int | None
) -> AsyncGenerator[LogChunk, None]:
    """Yield the logs written so far."""
    async for gap in _missing(api, sources, worker, tail):
        yield gap
    for pod in sources.of(worker):
        async for lines, _ in _lines(api, pod, tail, is_followed=False):
            yield LogChunk(_index(pod), sources.attempt, lines)


async def follow(
    api: Api,
    poll_sources: Callable[[], Awaitable[LogSources]],
    *,
    worker: int | None,
    tail: int | None,
    parts: bool,
) -> AsyncGenerator[LogChunk, None]:
    """Yield logs as they are written, until the workload is finished."""
    follower = _LogFollower(api, parts=parts)
    now = await poll_sources()
    async for gap in _missing(api, now, worker, tail):
        yield gap
    try:
        while True:
            for pod in now.of(worker):
                follower.begin(pod, now.attempt, tail)
            tail = None  # later pods are read from their beginning
            follower.wake_at(now.change)
            is_over = now.record.state.finished and follower.is_done
            while chunk := follower.pop_chunk():
                yield chunk
            if is_over:
                return
            await follower.wait()
            now = await poll_sources()
    finally:
        await follower.end()


async def _missing(
    api: Api, sources: LogSources, worker: int | None, tail: int | None
) -> AsyncGenerator[LogChunk, None]:
    """Yield a gap for each worker that lacks earlier output, unless its tail has enough lines."""
    for gap in sources.missing(worker):
        count = 0
        for pod in sources.of(gap.worker) if tail else ():
            async for lines, _ in _lines(api, pod, tail, is_followed=False):
                count += lines.count(b"\n")
        if tail is None or count < tail:
            yield gap


class _LogFollower:
    """Readers of the followed pods, one task each."""

    def __init__(self, api: Api, *, parts: bool) -> None:
        self._api = api
        self._parts = parts
        self._arrived: deque[LogChunk] = deque()
        self._consumed = asyncio.Event()
        self._woken = asyncio.Event()
        self._pods: dict[str, asyncio.Task[None]] = {}
        self._waking: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Return True if all readers have ended."""
        return all(task.done() for task in self._pods.values())

    def begin(self, pod: Pod, attempt: int, tail: int | None) -> None:
        """Start a reader of a pod's log, unless it has one."""
        if pod.uid not in self._pods:
            reading = asyncio.create_task(self._read(pod, attempt, tail))
            reading.add_done_callback(lambda _done: self._woken.set())
            self._pods[pod.uid] = reading

    def wake_at(self, change: asyncio.Event) -> None:
        """Make `wait` return when `change` is set."""
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._wake(change))

    def pop_chunk(self) -> LogChunk | None:
        """Return the oldest piece not yet yielded, or None."""
        self._consumed.set()
        return self._arrived.popleft() if self._arrived else None

    async def wait(self) -> None:
        """Return when a piece or a change may be available."""
        await self._woken.wait()
        self._woken.clear()

    async def end(self) -> None:
        """Stop all readers."""
        tasks = [*self._pods.values(), *([self._waking] if self._waking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, pod: Pod, attempt: int, tail: int | None) -> None:
        blocks = _lines(self._api, pod, tail, is_followed=True, parts=self._parts)
        async for lines, is_part in blocks:
            self._arrived.append(LogChunk(_index(pod), attempt, lines, is_part=is_part))
            self._woken.set()
            while len(self._arrived) >= MOST_WAITING:  # backpressure: the kubelet waits
                self._consumed.clear()
                await self._consumed.wait()

    async def _wake(self, change: asyncio.Event) -> None:
        await change.wait()
        self._woken.set()


async def _lines(
    api: Api, pod: Pod, tail: int | None, *, is_followed: bool, parts: bool = False
) -> AsyncGenerator[tuple[bytes, bool], None]:
    """Yield whole lines of a pod's log, or a part of one and True.

    There are none if the pod is gone or its node does not answer.
    """
    query = {"follow": "true"} if is_followed else {}
    cutter = LineCutter()
    if tail is not None:
        query["tailLines"] = str(tail)
    try:
        async with contextlib.aclosing(api.text(pod_path(pod, "log"), **query)) as blocks:
            async for block in blocks:
                if lines := cutter.feed(block):
                    yield lines, False
                if parts and (part := cutter.part()):
                    yield part, True
    except ApiError:
        return
    if rest := cutter.rest():
        yield rest, False


def _index(pod: Pod) -> int:
    return pod.index or 0
