"""Events that no decision waits for: told in the background, beside what matters first."""

import asyncio
import logging
from typing import NoReturn

from runai.hub_service.clusters.kubernetes.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.objects import Pod
from runai.hub_service.clusters.kubernetes.telling import tell_event

__all__ = ["EventQueue"]

LOG = logging.getLogger("runai.kubernetes")

TOLD_AT_ONCE = 4
MOST_UNTOLD = 10_000


class EventQueue:
    """Events that no decision waits for, told in the background, oldest first.

    Kubernetes keeps Events for an hour, and promises nothing of them: too many are dropped.
    """

    def __init__(self, api: Api) -> None:
        """Tell nothing yet: `run` does."""
        self._api = api
        self._untold: asyncio.Queue[tuple[Pod, str, str]] = asyncio.Queue(MOST_UNTOLD)

    def tell(self, pod: Pod, word: str, sentence: str) -> None:
        """Have an Event about a pod written soon."""
        try:
            self._untold.put_nowait((pod, word, sentence))
        except asyncio.QueueFull:
            LOG.warning("too many Events: not told of %s: %s", pod.key, sentence)

    async def run(self) -> NoReturn:
        """Tell for ever."""
        async with asyncio.TaskGroup() as telling:
            for _ in range(TOLD_AT_ONCE):
                telling.create_task(self._tell())
        raise AssertionError("it tells for ever")

    async def _tell(self) -> NoReturn:
        while True:
            pod, word, sentence = await self._untold.get()
            try:
                await tell_event(self._api, pod, word, sentence)
            except ApiError as error:
                LOG.info("not told of %s: %s", pod.key, error.message)
