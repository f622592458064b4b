"""The service's end of the decision worker: requests, deadlines and restarts.

Only the answer to a request that still waits is used, and once. A worker that dies, is late or
breaks the protocol is replaced, and the next request has a whole snapshot: decisions that were lost
with it are made again, and those that were applied are in that snapshot.
"""

import asyncio
import itertools
import logging
import os
import pickle
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, TypeVar

import psutil

from runai.hub_service.controller.decision_messages import (
    LENGTH_BYTES,
    Answer,
    Compare,
    Decide,
    Explain,
    Explained,
    Failed,
    Foresee,
    Foreseen,
    PlanDifference,
    Question,
    Reply,
    Request,
    VisibleNames,
    WhatIfQuestion,
    WhatIfResult,
    frame,
    patched,
)
from runai.hub_service.processes.own_process import MODULE
from runai.hub_service.scheduler.explanations.outcomes import OutcomeDifference
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.scheduler.model.snapshot import Plan, Snapshot
from runai.hub_service.scheduler.state.cluster_index import changes_between
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.decisions")

DEADLINE_S = 60.0
"""Seconds for a decision; doubled after each miss, until one is in time."""
QUESTION_WITHIN_S = 70.0
"""Seconds for a question: the worker's own bound comes first."""
TURN_WITHIN_S = 10.0
"""Seconds to wait for the previous question of the kind; then the caller may ask again."""
_PASSED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LANG", "COVERAGE_PROCESS_START")


class Pipe(Protocol):
    """A worker at the other end."""

    def send(self, request: Request) -> None:
        """Send a request; of a dead worker this is not noticed here."""

    async def receive(self) -> Reply:
        """Return the next reply.

        Raises:
            EOFError: the worker is dead; the message says how it ended.
        """

    async def close(self) -> None:
        """End the worker."""


class ProcessPipe:
    """A worker in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Talk to a started process."""
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._in, self._out = process.stdin, process.stdout

    @classmethod
    async def start(cls) -> "ProcessPipe":
        """Start the process, without secrets of the service.

        Raises:
            Unavailable: the machine has no processes, memory or descriptors left.
        """
        environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
        try:
            process = await asyncio.create_subprocess_exec(
                *MODULE,
                "runai.hub_service.controller.decision_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as failed:
            raise Unavailable(
                f"The decision worker cannot be started: {failed.strerror}.",
                hint="Jobs go on; the service tries again.",
                code="no_decisions",
            ) from failed
        return cls(process)

    def send(self, request: Request) -> None:
        """Send a request."""
        self._in.write(frame(request))

    async def receive(self) -> Reply:
        """Return the next reply."""
        try:
            size = int.from_bytes(await self._out.readexactly(LENGTH_BYTES))
            reply = pickle.loads(await self._out.readexactly(size))  # noqa: S301  our process
        except asyncio.IncompleteReadError:
            status = await self._process.wait()
            raise EOFError(_exit_text(status)) from None
        assert isinstance(reply, Reply)
        return reply

    async def close(self) -> None:
        """Kill the process: it has no state that is not here too."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._in.close()
        await self._process.wait()


def _exit_text(status: int) -> str:
    return f"it was killed by signal {-status}" if status < 0 else f"it exited with {status}"


@dataclass
class _WorkerSession:
    """One worker from its start to its end, and the base of the next differences."""

    pipe: Pipe
    waiting: dict[int, asyncio.Future[Answer]] = field(default_factory=dict)
    """Requests without an answer."""
    snapshot: Snapshot | None = None
    """Snapshot of the worker; None: unknown, so that the next request has a whole one."""
    plan: Plan = field(default_factory=Plan)
    reading: asyncio.Task[None] | None = None


class DecisionWorker:
    """Decisions, explanations and forecasts by a worker process that is kept running."""

    def __init__(self, start: Callable[[], Awaitable[Pipe]] = ProcessPipe.start) -> None:
        """Start workers by `start`, on demand."""
        self._start = start
        self._numbers = itertools.count(1)
        self._open_session: _WorkerSession | None = None
        self._deadline_s = DEADLINE_S
        self._starting, self._deciding = asyncio.Lock(), asyncio.Lock()
        self._explaining, self._foreseeing = asyncio.Lock(), asyncio.Lock()
        self._failure = ""
        self.started = 0
        """Workers started so far."""

    async def __aenter__(self) -> Self:
        """Start the first worker, so that the first decision need not wait for it."""
        await self._start_if_needed()
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End the worker."""
        await self.close()

    async def close(self) -> None:
        """End the worker; the next request would start another one."""
        if self._open_session is not None:
            await self._end_session(self._open_session, "the service ends")

    @property
    def pid(self) -> int | None:
        """Return the worker's process ID; None: there is none."""
        return None if self._open_session is None else getattr(self._open_session.pipe, "pid", None)

    def state(self) -> str:
        """Return the worker's state in words, without secrets."""
        replaced = max(0, self.started - 1)
        suffix = f", replaced {replaced} times since the service started" if replaced else ""
        return f"fails: {self._failure}{suffix}" if self._failure else f"runs{suffix}"

    def memory(self) -> int:
        """Return the worker's resident memory in bytes; 0: there is no process."""
        with suppress(psutil.Error):
            return int(psutil.Process(self.pid).memory_info().rss) if self.pid else 0
        return 0

    async def decide(self, snapshot: Snapshot) -> Plan:
        """Return the plan of a snapshot.

        Raises:
            Unavailable: the worker died or was late; the next call starts another one.
        """
        async with self._deciding:
            session = await self._start_if_needed()
            sent_snapshot = session.snapshot
            session.snapshot = None  # unknown until the answer is here
            update = snapshot if sent_snapshot is None else changes_between(sent_snapshot, snapshot)
            before = Plan() if sent_snapshot is None else session.plan
            try:
                async with asyncio.timeout(self._deadline_s):
                    answer = await self._send(session, Decide(update))
            except TimeoutError:
                why = f"it did not decide within {self._deadline_s:g} seconds"
                self._deadline_s *= 2
                await self._end_session(session, why)
                raise _unavailable(why) from None
            plan = patched(before, _of_kind(answer, PlanDifference))
            session.snapshot, session.plan = snapshot, plan
            self._deadline_s, self._failure = DEADLINE_S, ""
            return plan

    async def explain(self, workload: str, known: VisibleNames) -> Explained:
        """Explain why a workload waits in the last plan; name only the workloads in `known`.

        Raises:
            Unavailable: there is no answer in time, or the question before takes too long.
        """
        async with _wait_turn(self._explaining):
            session = await self._start_if_needed()
            answer = await _within_deadline(self._send(session, Explain(workload, known)))
            return _of_kind(answer, Explained)

    async def compare(self, question: Compare) -> OutcomeDifference:
        """Return the effects of changes to the last snapshot.

        Raises:
            Unavailable: there is no answer in time, or the question before takes too long.
        """
        async with _wait_turn(self._explaining):
            session = await self._start_if_needed()
            return _of_kind(
                await _within_deadline(self._send(session, question)), OutcomeDifference
            )

    async def what_if(
        self, changed_snapshot: Snapshot, foresee: Collection[str] = ()
    ) -> tuple[Plan, Mapping[str, ExpectedStart]]:
        """Return the plan of another snapshot, and the expected starts of some of its workloads.

        Raises:
            Unavailable: there is no answer in time, or the question before takes too long.
        """
        async with _wait_turn(self._foreseeing if foresee else self._explaining):
            async with self._deciding:  # so that the worker's snapshot is known
                session = await self._start_if_needed()
                if session.snapshot is None:
                    raise _unavailable("it has no snapshot yet")
                before = session.plan
                changes = changes_between(session.snapshot, changed_snapshot)
                pending_answer = self._send(session, WhatIfQuestion(changes, tuple(foresee)))
            result = _of_kind(await _within_deadline(pending_answer), WhatIfResult)
        return patched(before, result.plan), result.starts

    async def forecast(self) -> Foreseen:
        """Return the expected starts in the last plan; a person's forecast ends it early.

        Raises:
            Unavailable: there is no answer in time, or a person's forecast came first.
        """
        session = await self._start_if_needed()
        return _of_kind(await _within_deadline(self._send(session, Foresee())), Foreseen)

    # ---- the worker's life

    async def _start_if_needed(self) -> _WorkerSession:
        """Return the running worker, after starting one if necessary."""
        async with self._starting:
            if self._open_session is None:
                self._open_session = _WorkerSession(await self._start())
                self.started += 1
                self._open_session.reading = asyncio.create_task(
                    self._read_replies(self._open_session)
                )
            return self._open_session

    def _send(self, session: _WorkerSession, what: Decide | Question) -> asyncio.Future[Answer]:
        """Send a request; return the future of its answer."""
        request = Request(next(self._numbers), what)
        answer = session.waiting[request.number] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: session.waiting.pop(request.number, None))
        session.pipe.send(request)
        return answer

    async def _read_replies(self, session: _WorkerSession) -> None:
        """Hand each answer to its request, until the worker ends."""
        why = "its reply cannot be read"
        try:
            while True:
                reply = await session.pipe.receive()
                waiting = session.waiting.pop(reply.number, None)
                if waiting is None:  # cancelled meanwhile, answered already, or never asked
                    LOG.debug("dropped the reply to request %d: its caller is gone", reply.number)
                elif not waiting.done():
                    waiting.set_result(reply.answer)
        except EOFError as ended:
            why = str(ended)
        except Exception:  # whatever unpickling raises
            LOG.exception("a reply of the decision worker cannot be read")
        LOG.warning("the decision worker is replaced: %s", why)
        await self._end_session(session, why, is_read=True)

    async def _end_session(
        self, session: _WorkerSession, why: str, *, is_read: bool = False
    ) -> None:
        """End a worker and fail its requests; another one starts on demand."""
        if self._open_session is session:
            self._open_session, self._failure = None, why
        for waiting in list(session.waiting.values()):
            if not waiting.done():
                waiting.set_exception(_unavailable(why))
        if session.reading is not None and not is_read:
            session.reading.cancel()
        await session.pipe.close()


@asynccontextmanager
async def _wait_turn(lock: asyncio.Lock) -> AsyncGenerator[None]:
    """Hold a lock; one person's question must not wait for many others."""
    try:
        async with asyncio.timeout(TURN_WITHIN_S):
            await lock.acquire()
    except TimeoutError:
        raise Unavailable(
            "Too many questions are being answered at the moment.",
            hint="Ask again in a few seconds.",
        ) from None
    try:
        yield
    finally:
        lock.release()


async def _within_deadline(answer: asyncio.Future[Answer]) -> Answer:
    """Return an answer; raise Unavailable if it is late."""
    try:
        async with asyncio.timeout(QUESTION_WITHIN_S):
            return await answer
    except TimeoutError:
        raise _unavailable(f"it did not answer within {QUESTION_WITHIN_S:.0f} seconds") from None


T = TypeVar("T", bound=Answer)


def _of_kind(answer: Answer, kind: type[T]) -> T:
    """Return an answer of this kind; raise Unavailable for any other, as for a failure."""
    if isinstance(answer, Failed):
        raise _unavailable(answer.why)
    if not isinstance(answer, kind):
        raise _unavailable(f"it answered with {type(answer).__name__}")
    return answer


def _unavailable(why: str) -> Unavailable:
    return Unavailable(
        f"The scheduler does not answer: {why}.",
        hint="Jobs go on; ask again in a few seconds.",
        code="no_decisions",
    )
