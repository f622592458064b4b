"""The decision worker's protocol without a process: its other end runs in the same event loop.

inline_scheduler   the scheduler of the service, for tests of everything but the worker's process
InlinePipe         a worker that answers at once; subclasses misbehave
"""

from __future__ import annotations

import asyncio
import pickle

from runai.hub_service.controller.decision_messages import Decide, Reply, Request
from runai.hub_service.controller.decision_process import Decisions
from runai.hub_service.controller.decision_worker import DecisionWorker


class InlinePipe:
    """A worker that answers each request at once, from copies as a real pipe makes them."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Reply | str] = asyncio.Queue()
        """Replies that were not received yet; a sentence is the worker's end."""
        self._decisions = Decisions()

    @classmethod
    async def start(cls) -> InlinePipe:
        return cls()

    def send(self, request: Request) -> None:
        request = pickle.loads(pickle.dumps(request))
        what = request.what
        if isinstance(what, Decide):
            self.reply(Reply(request.number, self._decisions.decide(what)))
        else:
            self.reply(Reply(request.number, self._decisions.answer(what)))

    def reply(self, reply: Reply) -> None:
        self.replies.put_nowait(pickle.loads(pickle.dumps(reply)))

    async def receive(self) -> Reply:
        reply = await self.replies.get()
        if isinstance(reply, str):
            raise EOFError(reply)  # noqa: TRY004  the worker's end
        return reply

    async def close(self) -> None:
        """Do nothing: there is no process."""


def inline_scheduler() -> DecisionWorker:
    return DecisionWorker(InlinePipe.start)
