"""The imperative shell round `decide`: observe → decide → record → apply, after every change.

Knows when to run a cycle and what the last one came to. Leaves what to do to the scheduler and how
to the cluster. Owned by the composition root; the API reads the last cycle and waits for the next.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NoReturn

from runai.hub_service.controller.word import Word
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.model.cluster import Driven, Refused
from runai.hub_service.scheduler import Index
from runai.hub_service.scheduler.model.snapshot import Plan, Policy, Snapshot
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.controller")

AT_LEAST_EVERY_S = 10.0
SETTLE_S = 0.02
"""A burst of changes makes one cycle; far below the 0.1 s within which a change must be seen."""
THREAD_ABOVE = 1000
"""Workloads above which a decision would keep the event loop from answering requests."""
LONGEST_BACK_OFF_S = 10.0
NOT_PRESSING = 24.0
"""Times the rest after a cycle, where the next one would give nobody a device: one who deletes
thousands of waiting jobs, one by one, would have everybody's time spent on deciding."""
LONGEST_REST_S = 0.25
"""After a cycle that took in thousands: who submits then waits for its end and for the next one."""
LATEST_S = 2.0
"""After a cycle, however long that took, before what is not pressing is decided about."""

Phase = Literal["observe", "decide", "apply"]


@dataclass(frozen=True)
class Cycle:
    """What one cycle saw and decided, and what of it could not be done."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    plan: Plan = field(default_factory=Plan)
    refused: Sequence[Refused] = ()
    seconds: float = 0.0
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """How long each part of it took, in seconds."""

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the workloads that it saw."""
        return frozenset(workload.name for workload in self.snapshot.workloads)


class Controller:
    """Keep the cluster doing what the scheduler decides."""

    def __init__(
        self,
        cluster: Driven,
        decide: Callable[[Snapshot | Index], Plan],
        *,
        policy: Policy | None = None,
        history: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        on_cycle: Callable[[Cycle], None] = lambda _cycle: None,
        rests: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Drive `cluster` by `decide`; `on_cycle` is told of each cycle (metrics).

        Where changes never end, the next cycle begins `rests` times as long after the last one as
        its decision took, at the earliest: whoever asks something needs the same interpreter.

        `policy` is what the operator chose, None the scheduler's own. `history` adds what projects
        used of late, where the policy lets that count.
        """
        self._cluster = cluster
        self._decide = decide
        if policy is not None and policy.explain == "full":
            # At length it is told to those who ask, and may know: not in every cycle.
            policy = replace(policy, explain="short")
        self._policy = policy
        self._history = history
        self._on_cycle = on_cycle
        self._rests = rests
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._index: Index | None = None
        """The cluster as the last cycle left it, so that the next one costs what has changed."""
        self.last = Cycle()
        self._ended = -1.0
        self._pressed = True
        """Whether the last cycle was made for something pressing."""
        self._failing = ""
        self.changes = Broadcast()
        """Announced after every cycle, so after every change that anybody could see."""
        self.word = Word()

    def trouble(self) -> str:
        """Say why nothing is decided now; "" while cycles are run and succeed."""
        if self._failing:
            return f"the last cycle failed ({self._failing})"
        late = self._clock() - self._ended > 3 * AT_LEAST_EVERY_S
        return "no cycle was run yet, or of late" if self._ended < 0 or late else ""

    async def run(self) -> NoReturn:
        """Run a cycle at once, after every change, and at least every ten seconds; for ever."""
        failures = 0
        while True:
            try:
                await self.cycle()
            except Exception as failed:  # the loop outlives whatever one cycle meets
                failures += 1
                pause = min(0.1 * 2**failures, LONGEST_BACK_OFF_S)
                self._failing = type(failed).__name__
                if isinstance(failed, Unavailable):
                    LOG.warning("cycle failed: %s Next try in %.1f s", failed.message, pause)
                else:
                    LOG.exception(
                        "cycle failed, incident %s; next try in %.1f s", secrets.token_hex(4), pause
                    )
                await asyncio.sleep(pause)
                continue
            failures, self._failing = 0, ""
            await self._next_occasion()

    async def cycle(self) -> Cycle:
        """Observe, decide, apply; keep and announce what came of it. One at a time."""
        async with self._one_at_a_time:
            return await self._cycle()

    async def _cycle(self) -> Cycle:
        began = self._clock()
        snapshot = await self._cluster.observe()
        seen = self._clock()
        if self._policy is not None:
            snapshot = replace(snapshot, policy=self._policy)
            if self._policy.history_weight:
                snapshot = self._history(snapshot)
        plan = await self._decided(snapshot)
        decided = self._clock()
        _log_plan(plan, observing=seen - began, deciding=decided - seen)
        refused = await self._cluster.apply(plan, told=self.word.give)
        for refusal in refused:
            LOG.warning("not done: %s: %s", refusal.worker or refusal.workload, refusal.text)
        self._ended = self._clock()
        phases: dict[Phase, float] = {
            "observe": seen - began,
            "decide": decided - seen,
            "apply": self._ended - decided,
        }
        self.last = Cycle(snapshot, plan, refused, self._ended - began, phases)
        self._on_cycle(self.last)
        self.changes.announce()
        if self.word.is_awaited:
            self.word.end(self.last.names)
        return self.last

    async def plan(self, snapshot: Snapshot) -> Plan:
        """Decide about a snapshot, without applying anything."""
        return await self._beside_requests(snapshot, self._decide)

    async def _decided(self, snapshot: Snapshot) -> Plan:
        # Whoever breaks off leaves no index behind: it may be half way, or still at it in a thread.
        index, self._index = self._index, None
        if index is None:
            index = Index(snapshot)

        def followed(snapshot: Snapshot) -> Plan:
            index.follow(snapshot)
            return self._decide(index)

        plan = await self._beside_requests(snapshot, followed)
        self._index = index
        return plan

    async def _beside_requests(
        self, snapshot: Snapshot, decide: Callable[[Snapshot], Plan]
    ) -> Plan:
        """Decide in a thread where it takes long, so that requests are answered meanwhile."""
        if len(snapshot.workloads) > THREAD_ABOVE:
            return await asyncio.to_thread(decide, snapshot)
        return decide(snapshot)

    async def _next_occasion(self) -> None:
        try:
            async with asyncio.timeout(AT_LEAST_EVERY_S):
                await self._cluster.changed()
        except TimeoutError:
            return
        rest = min(LONGEST_REST_S, self._rests * self.last.phases.get("decide", 0.0))
        later = min(LATEST_S, NOT_PRESSING * self._rests * self.last.seconds)
        # There is one of those in 25 times its length: nobody need rest from it besides.
        rest, self._pressed = (rest if self._pressed else 0.0), True
        try:
            async with asyncio.timeout(self._left_of(later)):
                await self._cluster.changed(pressing=True)
        except TimeoutError:
            self._pressed = False
        await asyncio.sleep(max(SETTLE_S, self._left_of(rest)))

    def _left_of(self, rest: float) -> float:
        return rest - (self._clock() - self._ended)


def _log_plan(plan: Plan, *, observing: float, deciding: float) -> None:
    """Say what was decided in the moment in which it was, for who looks closely."""
    if LOG.isEnabledFor(logging.DEBUG):
        what = ", ".join(
            f"{n} {kind}" for kind, n in Counter(d.kind for d in plan.decisions).items()
        )
        LOG.debug(
            "observed in %.3f s, decided in %.3f s: %s", observing, deciding, what or "nothing"
        )
