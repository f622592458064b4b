"""Events that no decision waits for: told in the background, beside what matters first."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple, NoReturn

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.events.pod_conditions import tell_event
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job

LOG = logging.getLogger("runai.kubernetes")

TOLD_AT_ONCE = 4
TOLD_MEANWHILE = 1
"""How many are told at once while a plan is carried out: bindings and evictions go first."""
MOST_UNTOLD = 10_000


class _News(NamedTuple):
    """What is to be told; no two have the same number, so pods are not compared."""

    rank: int
    number: int
    of: Pod | Job
    word: str
    sentence: str
    bad: bool


class EventQueue:
    """Events that no decision waits for, told in the background, oldest first.

    Kubernetes keeps Events for an hour, and promises nothing of them: too many are dropped.
    """

    def __init__(self, api: Api) -> None:
        """Tell nothing yet: `run` does."""
        self._api = api
        self._untold: asyncio.PriorityQueue[_News] = asyncio.PriorityQueue(MOST_UNTOLD)
        self._numbers = count()
        self._free = asyncio.Event()
        self._free.set()

    @contextmanager
    def stepping_back(self) -> Iterator[None]:
        """Leave the API server to more urgent calls until the `with` ends; never quite stop."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def tell(
        self, of: Pod | Job, word: str, sentence: str, *, leaves: bool = False, bad: bool = False
    ) -> None:
        """Have an Event about it written soon; of a pod that `leaves` before all others."""
        news = _News(0 if leaves else 1, next(self._numbers), of, word, sentence, bad)
        try:
            self._untold.put_nowait(news)
        except asyncio.QueueFull:
            LOG.warning("too many Events: not told of %s/%s: %s", of.namespace, of.name, sentence)

    async def run(self) -> NoReturn:
        """Tell for ever."""
        async with asyncio.TaskGroup() as telling:
            for teller in range(TOLD_AT_ONCE):
                telling.create_task(self._tell(steps_back=teller >= TOLD_MEANWHILE))
        raise AssertionError("it tells for ever")

    async def _tell(self, *, steps_back: bool) -> NoReturn:
        while True:
            _rank, _number, of, word, sentence, bad = await self._untold.get()
            if steps_back:
                await self._free.wait()
            try:
                await tell_event(self._api, of, word, sentence, bad=bad)
            except ApiError as error:
                LOG.info("not told of %s/%s: %s", of.namespace, of.name, error.message)
