"""The decision worker's protocol without a process: its other end runs in the same event loop.

inline_scheduler   the scheduler of the service, for tests of everything but the worker's process
InlinePipe         a worker that answers at once
FaultyPipe         a worker that dies, is late, or answers another request
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from runai.hub_service.controller.decision_messages import Decide, Reply, Request
from runai.hub_service.controller.decision_process import Decisions
from runai.hub_service.controller.decision_worker import DecisionWorker


class InlinePipe:
    """A worker that answers each request at once, from copies as a real pipe makes them."""

    def __init__(self) -> None:
        self._replies = deque[Reply | str]()
        """Replies that were not received yet; a sentence is the worker's end."""
        self._arrived: asyncio.Future[None] | None = None
        self._decisions = Decisions()

    @classmethod
    async def start(cls) -> InlinePipe:
        return cls()

    def send(self, request: Request) -> None:
        self.put(self.reply_to(request))

    def reply_to(self, request: Request) -> Reply:
        payload = pickle.loads(pickle.dumps(request.payload))
        decides = isinstance(payload, Decide)
        answer = self._decisions.decide(payload) if decides else self._decisions.answer(payload)
        reply: Reply = pickle.loads(pickle.dumps(Reply(request.number, answer)))
        return reply

    def put(self, reply: Reply | str) -> None:
        self._replies.append(reply)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def receive(self) -> Reply:
        # A queue would raise in a test's closed loop when this is collected as garbage there.
        while not self._replies:
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        reply = self._replies.popleft()
        if isinstance(reply, str):
            raise EOFError(reply)  # noqa: TRY004  the worker's end
        return reply

    async def close(self) -> None:
        """Do nothing: there is no process."""


Fault = Literal["", "dies", "late", "twice", "another number"]


class FaultyPipe(InlinePipe):
    """A worker that has one fault at a request, whenever `next_fault` returns it."""

    def __init__(self, next_fault: Callable[[], Fault]) -> None:
        super().__init__()
        self._next_fault = next_fault

    def send(self, request: Request) -> None:
        fault = self._next_fault()
        if fault == "dies":
            self.put("it was killed by signal 9")
        elif fault != "late":
            reply = self.reply_to(request)
            if fault == "another number":
                reply = replace(reply, number=reply.number + 7)
            for _ in range(1 + (fault == "twice")):
                self.put(reply)


def inline_scheduler() -> DecisionWorker:
    return DecisionWorker(InlinePipe.start)
