"""The decision worker: a process that runs the scheduler for the service.

    python -m runai.hub_service.controller.decision_process

Requests come on its standard input, replies leave on its standard output. One thread decides. A
question runs in a child that is forked from it, so that the child has the state of the last plan
and no decision waits for it. The process ends when its input closes.
"""

import gc
import os
import pickle
import resource
import selectors
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

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
    WhatIfQuestion,
    WhatIfResult,
    difference,
    frame,
    is_known,
)
from runai.hub_service.processes.own_process import end_with_parent
from runai.hub_service.scheduler import (
    ClusterIndex,
    Plan,
    Snapshot,
    compare,
    decide,
    explain,
    forecast,
)

ANSWERS_WITHIN_S = 60.0
"""Seconds after which a child is killed; its question has no answer then."""
READ_BYTES = 2**20
ADDED_OOM_SCORE = 500
"""Addition to the kernel's out-of-memory score: the worker is killed before the service."""
CHILD_NICENESS = 5
"""Nice value of children: decisions and requests come first."""


class Decisions:
    """The scheduler's state between requests: the index of the cluster, and the last plan."""

    def __init__(self) -> None:
        """Start without a snapshot: the first request has one."""
        self._index = ClusterIndex(Snapshot())
        self._plan = Plan()

    def decide(self, request: Decide) -> PlanDifference:
        """Return the next plan, as its difference to the last one."""
        if isinstance(request.update, Snapshot):
            self._index, self._plan = ClusterIndex(request.update), Plan()
        else:
            self._index.apply(request.update)
        before, self._plan = self._plan, decide(self._index)
        return difference(before, self._plan)

    def answer(self, question: Question) -> Answer:
        """Answer a question about the last plan; the state may be used up afterwards."""
        snapshot, plan = self._index.snapshot(), self._plan
        match question:
            case Explain():
                known = question.known
                wait = explain(snapshot, plan, question.workload, lambda w: is_known(w, known))
                return Explained(snapshot.now, wait)
            case WhatIfQuestion():
                index = ClusterIndex(snapshot)
                index.apply(question.changes)
                other = index.snapshot()
                other_plan = decide(other)
                starts = (
                    forecast(other, other_plan, set(question.foresee)) if question.foresee else {}
                )
                return WhatIfResult(difference(plan, other_plan), starts)
            case Compare():
                other = question.applied_to(snapshot)
                added, known = {w.name for w in question.added}, question.known
                return compare(
                    (snapshot, plan), (other, decide(other)), added, lambda w: is_known(w, known)
                )
            case Foresee():
                return Foreseen(snapshot.now, forecast(snapshot, plan))


@dataclass
class _Child:
    """A question that is being answered in a process of its own."""

    number: int
    pid: int
    pipe: int
    until: float
    """Deadline, in seconds of the monotonic clock."""
    is_forecast: bool
    answer: bytearray = field(default_factory=bytearray)


class DecisionLoop:
    """The worker's loop: requests from one pipe, replies to another, children beside it."""

    def __init__(self, requests: int, replies: int) -> None:
        """Serve file descriptors."""
        self._requests, self._replies = requests, replies
        self._received = bytearray()
        self._decisions = Decisions()
        self._children: dict[int, _Child] = {}
        """By the descriptor of their pipe."""
        self._ready = selectors.DefaultSelector()
        self._ready.register(requests, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve requests until the service closes its end of the pipe."""
        while True:
            until = min((child.until for child in self._children.values()), default=None)
            remaining = None if until is None else max(0.0, until - time.monotonic())
            for key, _ in self._ready.select(remaining):
                if key.fd in self._children:
                    self._read_answer(self._children[key.fd])
                elif key.fd == self._requests and not self._read_requests():
                    return
            for child in list(self._children.values()):
                if child.until <= time.monotonic():
                    self._kill_child(child, f"it took longer than {ANSWERS_WITHIN_S:.0f} seconds")

    def _read_requests(self) -> bool:
        """Serve the whole requests received; return False once the service has closed the pipe."""
        read = os.read(self._requests, READ_BYTES)
        self._received += read
        while (body := _pop_message(self._received)) is not None:
            self._serve(pickle.loads(body))  # noqa: S301  from the service
        return bool(read)

    def _serve(self, request: Request) -> None:
        if isinstance(request.payload, Decide):
            self._reply(Reply(request.number, self._decisions.decide(request.payload)))
        else:
            self._fork(request.number, request.payload)

    def _reply(self, reply: Reply) -> None:
        remaining = memoryview(frame(reply))
        while remaining:
            remaining = remaining[os.write(self._replies, remaining) :]

    # ---- children

    def _fork(self, number: int, question: Question) -> None:
        """Answer a question in a child; a person's forecast ends the one in the background."""
        is_forecast = isinstance(question, Foresee) or bool(
            isinstance(question, WhatIfQuestion) and question.foresee
        )
        running = [child for child in self._children.values() if child.is_forecast]
        if running and isinstance(question, Foresee):
            self._reply(Reply(number, Failed("another forecast runs")))
            return
        if is_forecast:
            for other in running:
                self._kill_child(other, "another forecast was asked for")
        gc.freeze()  # a collection in the child would copy every page
        answer_read, answer_write = os.pipe()
        pid = os.fork()
        if not pid:
            for inherited in (answer_read, self._requests, self._replies):
                os.close(inherited)
            _answer(self._decisions, question, answer_write)
        os.close(answer_write)
        until = time.monotonic() + ANSWERS_WITHIN_S
        self._children[answer_read] = _Child(number, pid, answer_read, until, is_forecast)
        self._ready.register(answer_read, selectors.EVENT_READ)

    def _read_answer(self, child: _Child) -> None:
        """Read a part of a child's answer; reply when the child has closed its pipe."""
        if read := os.read(child.pipe, READ_BYTES):
            child.answer += read
            return
        answer = _pop_message(child.answer)
        if answer is None:
            self._kill_child(child, "its process ended before the answer")
        else:
            self._remove_child(child)
            self._reply(Reply(child.number, pickle.loads(answer)))  # noqa: S301  a child of ours

    def _kill_child(self, child: _Child, why: str) -> None:
        """End a child without an answer, and reply why there is none."""
        os.kill(child.pid, signal.SIGKILL)
        self._remove_child(child)
        self._reply(Reply(child.number, Failed(why)))

    def _remove_child(self, child: _Child) -> None:
        """Close the pipe of a child and reap it."""
        self._ready.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        os.waitpid(child.pid, 0)


def _answer(decisions: Decisions, question: Question, pipe: int) -> NoReturn:
    """Write the answer to a pipe, and exit: the body of a child."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent()
        os.nice(CHILD_NICENESS)
        gc.disable()
        with open(pipe, "wb") as out:
            out.write(frame(decisions.answer(question)))
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)  # nothing of the worker's own may run on


def _pop_message(received: bytearray) -> bytes | None:
    """Take the first message out of the received bytes; None: it is not whole yet."""
    end = LENGTH_BYTES + int.from_bytes(received[:LENGTH_BYTES])
    if len(received) < LENGTH_BYTES or len(received) < end:
        return None
    message = bytes(received[LENGTH_BYTES:end])
    del received[:end]
    return message


def memory_bound() -> int:
    """Return the bytes that the worker may allocate: half of what this container or machine has.

    Kubernetes lets the kernel kill a whole container that exceeds its limit, the service included.
    A worker that exceeds its own bound ends alone, with MemoryError.
    """
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):  # no control groups, or no limit: "max"
        amounts.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(amounts) // 2


def main() -> int:
    """Serve the process that started this one; return the exit status."""
    replies = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed must not become a reply
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the service's group; its pipe closes
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bound(), resource.RLIM_INFINITY))
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(str(ADDED_OOM_SCORE))
    DecisionLoop(sys.stdin.fileno(), replies).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
