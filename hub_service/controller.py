"""The imperative shell round `decide`: observe → decide → record → apply, after every change.

Knows when to run a cycle and what the last one came to. Leaves what to do to the scheduler and how
to the cluster. Owned by the composition root; the API reads the last cycle and waits for the next.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from runai.hub_service.broadcast import Broadcast
from runai.hub_service.clusters.base import Driven, Refused
from runai.hub_service.scheduler.model import Plan, Policy, Snapshot

__all__ = ["Controller", "Cycle"]

LOG = logging.getLogger("runai.controller")

AT_LEAST_EVERY_S = 10.0
SETTLE_S = 0.02
"""A burst of changes makes one cycle; far below the 0.1 s within which a change must be seen."""
THREAD_ABOVE = 1000
"""Workloads above which a decision would keep the event loop from answering requests."""
LONGEST_BACK_OFF_S = 10.0


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle saw and decided, and what of it could not be done."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    plan: Plan = field(default_factory=Plan)
    refused: Sequence[Refused] = ()
    seconds: float = 0.0


class Controller:
    """Keep the cluster doing what the scheduler decides."""

    def __init__(
        self,
        cluster: Driven,
        decide: Callable[[Snapshot], Plan],
        *,
        policy: Policy | None = None,
        history: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        on_cycle: Callable[[Cycle], None] = lambda _cycle: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Drive `cluster` by `decide`; `on_cycle` is told of each cycle (metrics).

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
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self.last = Cycle()
        self.changes = Broadcast()
        """Announced after every cycle, so after every change that anybody could see."""

    async def run(self) -> NoReturn:
        """Run a cycle at once, after every change, and at least every ten seconds; for ever."""
        failures = 0
        while True:
            try:
                await self.cycle()
            except Exception:  # the loop outlives whatever one cycle meets
                failures += 1
                pause = min(0.1 * 2**failures, LONGEST_BACK_OFF_S)
                LOG.exception(
                    "cycle failed, incident %s; next try in %.1f s", secrets.token_hex(4), pause
                )
                await asyncio.sleep(pause)
                continue
            failures = 0
            await self._next_occasion()

    async def cycle(self) -> Cycle:
        """Observe, decide, apply; keep and announce what came of it. One at a time."""
        async with self._one_at_a_time:
            return await self._cycle()

    async def _cycle(self) -> Cycle:
        began = self._clock()
        snapshot = await self._cluster.observe()
        if self._policy is not None:
            snapshot = replace(snapshot, policy=self._policy)
            if self._policy.history_weight:
                snapshot = self._history(snapshot)
        plan = await self.plan(snapshot)
        refused = await self._cluster.apply(plan)
        for refusal in refused:
            LOG.warning("not done: %s: %s", refusal.worker or refusal.workload, refusal.text)
        self.last = Cycle(snapshot, plan, refused, self._clock() - began)
        self._on_cycle(self.last)
        self.changes.announce()
        return self.last

    async def plan(self, snapshot: Snapshot) -> Plan:
        """Decide about a snapshot, without applying anything."""
        if len(snapshot.workloads) > THREAD_ABOVE:
            return await asyncio.to_thread(self._decide, snapshot)
        return self._decide(snapshot)

    async def _next_occasion(self) -> None:
        try:
            async with asyncio.timeout(AT_LEAST_EVERY_S):
                await self._cluster.changed()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE_S)
