"""The control loop around `decide`: observe, decide, record and apply after every change.

`Controller.last` is the most recent cycle; `changes` notifies of each new one.
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
"""Time in seconds to merge a burst of changes into one cycle. Far below the limit of 0.1 s."""
THREAD_ABOVE = 1000
"""Workloads above which a decision runs in a thread, to keep the event loop responsive."""
LONGEST_BACK_OFF_S = 10.0
NOT_PRESSING = 24.0
"""Multiple of the rest after a cycle, if the next one would allocate no device. Otherwise, deleting
thousands of waiting jobs one by one would spend all CPU time on decisions.
"""
LONGEST_REST_S = 0.25
"""Upper bound in seconds: a submission waits for the current and the next cycle."""
LATEST_S = 2.0
"""Upper bound in seconds between a cycle and a next one without urgent changes."""

Phase = Literal["observe", "decide", "apply"]


@dataclass(frozen=True)
class Cycle:
    """Snapshot, plan and refused decisions of one cycle."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    plan: Plan = field(default_factory=Plan)
    refused: Sequence[Refused] = ()
    seconds: float = 0.0
    phases: Mapping[Phase, float] = field(default_factory=dict)
    """Duration of each phase in seconds."""

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of the workloads in the snapshot."""
        return frozenset(workload.name for workload in self.snapshot.workloads)


class Controller:
    """Loop that keeps the cluster in line with the scheduler's plans."""

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
        """Drive `cluster` by `decide`; call `on_cycle` after each cycle (metrics).

        The next cycle starts at least `rests` times the last decision's duration after it, because
        API requests need the same interpreter.

        `policy` is the operator's; None is the scheduler's default. `history` adds the projects'
        recent usage, if the policy uses it.
        """
        self._cluster = cluster
        self._decide = decide
        if policy is not None and policy.explain == "full":
            # Full explanations are computed on request, for users allowed to see them.
            policy = replace(policy, explain="short")
        self._policy = policy
        self._history = history
        self._on_cycle = on_cycle
        self._rests = rests
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._index: Index | None = None
        """Index of the previous cycle, so that the next one costs only what changed."""
        self.last = Cycle()
        self._ended = -1.0
        self._was_urgent = True
        """True if the last cycle had an urgent change."""
        self._failing = ""
        self.changes = Broadcast()
        """Announced after every cycle, so after every visible change."""
        self.word = Word()

    def trouble(self) -> str:
        """Return why no plan is made at present; "" while cycles succeed."""
        if self._failing:
            return f"the last cycle failed ({self._failing})"
        late = self._clock() - self._ended > 3 * AT_LEAST_EVERY_S
        return "no cycle was run yet, or of late" if self._ended < 0 or late else ""

    async def run(self) -> NoReturn:
        """Run a cycle at once, after every change, and at least every ten seconds; forever."""
        failures = 0
        while True:
            try:
                await self.cycle()
            except Exception as failed:  # the loop must survive any failed cycle
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
            await self._wait_for_change()

    async def cycle(self) -> Cycle:
        """Run one cycle: observe, decide, apply, announce. Concurrent calls wait for each other."""
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
            LOG.warning(
                "the cluster refused a decision about %s: %s",
                refusal.worker or refusal.workload,
                refusal.text,
            )
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
        """Return the plan for a snapshot, without applying it."""
        return await self._run_decide(snapshot, self._decide)

    async def _decided(self, snapshot: Snapshot) -> Plan:
        # A cancelled decision drops its index: it may be half updated, or still in use in a thread.
        index, self._index = self._index, None
        if index is None:
            index = Index(snapshot)

        def followed(snapshot: Snapshot) -> Plan:
            index.follow(snapshot)
            return self._decide(index)

        plan = await self._run_decide(snapshot, followed)
        self._index = index
        return plan

    async def _run_decide(self, snapshot: Snapshot, decide: Callable[[Snapshot], Plan]) -> Plan:
        """Decide, for many workloads in a thread, so that the event loop keeps serving requests."""
        if len(snapshot.workloads) > THREAD_ABOVE:
            return await asyncio.to_thread(decide, snapshot)
        return decide(snapshot)

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(AT_LEAST_EVERY_S):
                await self._cluster.changed()
        except TimeoutError:
            return
        rest = min(LONGEST_REST_S, self._rests * self.last.phases.get("decide", 0.0))
        later = min(LATEST_S, NOT_PRESSING * self._rests * self.last.seconds)
        # A cycle without urgent changes already waited 24 times as long; no further rest is needed.
        rest, self._was_urgent = (rest if self._was_urgent else 0.0), True
        try:
            async with asyncio.timeout(self._remaining_rest(later)):
                await self._cluster.changed(pressing=True)
        except TimeoutError:
            self._was_urgent = False
        await asyncio.sleep(max(SETTLE_S, self._remaining_rest(rest)))

    def _remaining_rest(self, rest: float) -> float:
        return rest - (self._clock() - self._ended)


def _log_plan(plan: Plan, *, observing: float, deciding: float) -> None:
    """Log the counts of decisions at debug level."""
    if LOG.isEnabledFor(logging.DEBUG):
        what = ", ".join(
            f"{n} {kind}" for kind, n in Counter(d.kind for d in plan.decisions).items()
        )
        LOG.debug(
            "observed in %.3f s, decided in %.3f s: %s", observing, deciding, what or "nothing"
        )
