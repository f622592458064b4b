"""Progress of one server start, for any number of browsers.

Each listener gets all events from the beginning; consecutive equal sentences become one event.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

# Percent of JupyterHub's bar: a queue has no percentage, so each sentence adds STEP up to LAST.
FIRST, STEP, LAST = 10, 5, 80


class StartProgress:
    """The sentences of one start, in order."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._update_event = asyncio.Event()
        self.is_over = False

    def append(self, sentence: str) -> None:
        """Append a sentence, unless it equals the last one."""
        if not self._sentences or self._sentences[-1] != sentence:
            self._sentences.append(sentence)
            self._wake()

    def close(self) -> None:
        """End the progress; all listeners return."""
        self.is_over = True
        self._wake()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield progress events from the first one on, until `close`."""
        index = 0
        while True:
            update_event = self._update_event
            while index < len(self._sentences):
                yield {
                    "progress": min(FIRST + STEP * index, LAST),
                    "message": self._sentences[index],
                }
                index += 1
            if self.is_over:
                return
            await update_event.wait()

    def _wake(self) -> None:
        update_event, self._update_event = self._update_event, asyncio.Event()
        update_event.set()


async def merged(*sources: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Merge event streams until all have ended; `progress` never decreases."""
    events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def forward(source: AsyncIterator[dict[str, Any]]) -> None:
        try:
            async for event in source:
                events.put_nowait(event)
        finally:
            events.put_nowait(None)

    tasks = [asyncio.ensure_future(forward(source)) for source in sources]
    open_sources, max_progress = len(tasks), 0
    try:
        while open_sources:
            event = await events.get()
            if event is None:
                open_sources -= 1
                continue
            if "progress" in event:
                max_progress = max(max_progress, event["progress"])
                event = {**event, "progress": max_progress}
            yield event
        await asyncio.gather(*tasks)  # raise a source's exception here
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
