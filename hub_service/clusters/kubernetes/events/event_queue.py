"""Background queue for Events that no decision waits for."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple, NoReturn

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.events.pod_conditions import create_event
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job

LOG = logging.getLogger("runai.kubernetes")

PARALLEL_SENDERS = 4
SENDERS_DURING_PLAN = 1
"""Events sent in parallel, normally and during plan execution: binds and evictions go first."""
MAX_QUEUED = 10_000


class _QueuedEvent(NamedTuple):
    """One queued Event; `number` is unique, so that the queue never compares pods."""

    rank: int
    number: int
    of: Pod | Job
    word: str
    sentence: str
    bad: bool


class EventQueue:
    """Queue of Events, sent in the background, oldest first.

    Kubernetes keeps Events for an hour and does not guarantee them: beyond 10,000 they are dropped.
    """

    def __init__(self, api: Api) -> None:
        """Begin with an empty queue; `run` sends."""
        self._api = api
        self._queue: asyncio.PriorityQueue[_QueuedEvent] = asyncio.PriorityQueue(MAX_QUEUED)
        self._numbers = count()
        self._not_throttled = asyncio.Event()
        self._not_throttled.set()

    @contextmanager
    def throttled(self) -> Iterator[None]:
        """Reduce sending to one Event at a time inside the `with`: urgent calls go first."""
        self._not_throttled.clear()
        try:
            yield
        finally:
            self._not_throttled.set()

    def enqueue(
        self, of: Pod | Job, word: str, sentence: str, *, leaves: bool = False, bad: bool = False
    ) -> None:
        """Enqueue an Event; Events of pods that end (`leaves`) go first.

        Such a pod can be read only until it is deleted.
        """
        news = _QueuedEvent(0 if leaves else 1, next(self._numbers), of, word, sentence, bad)
        try:
            self._queue.put_nowait(news)
        except asyncio.QueueFull:
            LOG.warning("too many Events: dropped %s/%s: %s", of.namespace, of.name, sentence)

    async def run(self) -> NoReturn:
        """Send Events until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for number in range(PARALLEL_SENDERS):
                senders.create_task(self._send(is_throttled=number >= SENDERS_DURING_PLAN))
        raise AssertionError("the queue runs until cancelled")

    async def _send(self, *, is_throttled: bool) -> NoReturn:
        while True:
            _rank, _number, of, word, sentence, bad = await self._queue.get()
            if is_throttled:
                await self._not_throttled.wait()
            try:
                await create_event(self._api, of, word, sentence, bad=bad)
            except ApiError as error:
                LOG.info("Event of %s/%s not written: %s", of.namespace, of.name, error.message)
