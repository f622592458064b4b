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
    subject: Pod | Job
    reason: str
    message: str
    is_warning: bool


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
        self,
        subject: Pod | Job,
        reason: str,
        message: str,
        *,
        is_ending: bool = False,
        is_warning: bool = False,
    ) -> None:
        """Enqueue an Event; those of pods that are ending go first.

        Users can read the Events of such a pod only until it is deleted.
        """
        rank = 0 if is_ending else 1
        event = _QueuedEvent(rank, next(self._numbers), subject, reason, message, is_warning)
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            LOG.warning(
                "too many Events: dropped %s/%s: %s", subject.namespace, subject.name, message
            )

    async def run(self) -> NoReturn:
        """Send Events until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for number in range(PARALLEL_SENDERS):
                senders.create_task(self._send(is_throttled=number >= SENDERS_DURING_PLAN))
        raise AssertionError("the queue runs until cancelled")

    async def _send(self, *, is_throttled: bool) -> NoReturn:
        """Send Events one by one; with `is_throttled`, not during `throttled`."""
        while True:
            _rank, _number, subject, reason, message, is_warning = await self._queue.get()
            if is_throttled:
                await self._not_throttled.wait()
            try:
                await create_event(self._api, subject, reason, message, is_warning=is_warning)
            except ApiError as error:
                LOG.info(
                    "Event of %s/%s not written: %s", subject.namespace, subject.name, error.message
                )
