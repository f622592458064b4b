"""The control loop around `decide`: observe, decide, record and apply after every change.

`Controller.last` is the most recent cycle; `changes` notifies of each new one.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, Protocol

from runai.hub_service.model.changes import Broadcast
from runai.hub_service.model.cluster import ControlledCluster, Refused
from runai.hub_service.scheduler.model.snapshot import Plan, Policy, Snapshot
from runai.hub_service.wire.errors import Unavailable

LOG = logging.getLogger("runai.controller")

MAX_CYCLE_INTERVAL_S = 10.0
SETTLE_S = 0.02
"""Time in seconds to merge a burst of changes into one cycle. Far below the limit of 0.1 s."""
MAX_BACKOFF_S = 10.0
MAX_PAUSE_S = 0.25
"""Upper bound in seconds of the pause after a cycle, which otherwise lasts as long as it took to
observe and decide: beside thousands of waiting jobs requests get half of the time.
"""

CyclePhase = Literal["observe", "decide", "apply"]


@dataclass(frozen=True)
class Cycle:
    """Snapshot, plan and refused decisions of one cycle."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    plan: Plan = field(default_factory=Plan)
    refused: Sequence[Refused] = ()
    seconds: float = 0.0
    phases: Mapping[CyclePhase, float] = field(default_factory=dict)
    """Duration of each phase in seconds."""


class Decider(Protocol):
    """The scheduler, wherever it runs."""

    async def decide(self, snapshot: Snapshot) -> Plan:
        """Return the plan of a snapshot.

        Raises:
            Unavailable: there is none now; the next cycle asks again.
        """


class Controller:
    """Loop that keeps the cluster in line with the scheduler's plans."""

    def __init__(
        self,
        cluster: ControlledCluster,
        decider: Decider,
        *,
        policy: Policy | None = None,
        history: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        members: Callable[[Snapshot], Awaitable[Snapshot]] | None = None,
        on_cycle: Callable[[Cycle], None] = lambda _cycle: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Drive `cluster` by `decider`; call `on_cycle` after each cycle (metrics).

        `policy` is the operator's; None is the scheduler's default. `history` adds the projects'
        recent usage, if the policy uses it. `members` adds the projects' former members.
        """
        self._cluster = cluster
        self._decider = decider
        if policy is not None and policy.explain == "full":
            # Full explanations are computed on request, for users allowed to see them.
            policy = replace(policy, explain="short")
        self._policy = policy
        self._history = history
        self._members = members
        self._on_cycle = on_cycle
        self._clock = clock
        self._cycle_lock = asyncio.Lock()
        self.last = Cycle()
        self._ended_at = -1.0
        self._failure = ""
        self.changes = Broadcast()
        """Announced after every cycle, so after every visible change."""

    def unhealthy_reason(self) -> str:
        """Return why no plan is made at present; "" while cycles succeed."""
        if self._failure:
            return f"the last cycle failed ({self._failure})"
        is_late = self._clock() - self._ended_at > 3 * MAX_CYCLE_INTERVAL_S
        return "no cycle was run yet, or of late" if self._ended_at < 0 or is_late else ""

    @property
    def is_failing(self) -> bool:
        """Return True if the last cycle failed."""
        return bool(self._failure)

    async def run(self) -> NoReturn:
        """Run a cycle at once, after every change, and at least every ten seconds; forever."""
        failures = 0
        while True:
            try:
                await self.cycle()
            except Exception as failed:  # the loop must survive any failed cycle
                failures += 1
                pause = min(0.1 * 2**failures, MAX_BACKOFF_S)
                self._failure = type(failed).__name__
                if isinstance(failed, Unavailable):
                    LOG.warning("cycle failed: %s Next try in %.1f s", failed.message, pause)
                else:
                    LOG.exception(
                        "cycle failed, incident %s; next try in %.1f s", secrets.token_hex(4), pause
                    )
                await asyncio.sleep(pause)
                continue
            failures, self._failure = 0, ""
            await self._wait_for_change()

    async def cycle(self) -> Cycle:
        """Run one cycle: observe, decide, apply, announce. Concurrent calls wait for each other."""
        async with self._cycle_lock:
            return await self._run_cycle()

    async def _run_cycle(self) -> Cycle:
        """Observe, decide and apply; record the cycle with the duration of each phase."""
        began = self._clock()
        snapshot = await self._cluster.observe()
        if self._members is not None:
            snapshot = await self._members(snapshot)
        observed = self._clock()
        if self._policy is not None:
            snapshot = replace(snapshot, policy=self._policy)
            if self._policy.history_weight:
                snapshot = self._history(snapshot)
        plan = await self._decider.decide(snapshot)
        decided = self._clock()
        _log_plan(plan, observing=observed - began, deciding=decided - observed)
        refused = await self._cluster.apply(plan)
        for refusal in refused:
            LOG.warning(
                "the cluster refused a decision about %s: %s",
                refusal.worker or refusal.workload,
                refusal.text,
            )
        self._ended_at = self._clock()
        phases: dict[CyclePhase, float] = {
            "observe": observed - began,
            "decide": decided - observed,
            "apply": self._ended_at - decided,
        }
        self.last = Cycle(snapshot, plan, refused, self._ended_at - began, phases)
        self._on_cycle(self.last)
        self.changes.announce()
        return self.last

    async def _wait_for_change(self) -> None:
        """Return after a change and the pause behind the last cycle, or after ten seconds."""
        try:
            async with asyncio.timeout(MAX_CYCLE_INTERVAL_S):
                await self._cluster.changed()
        except TimeoutError:
            return
        took = self.last.phases.get("observe", 0.0) + self.last.phases.get("decide", 0.0)
        paused = self._clock() - self._ended_at
        await asyncio.sleep(max(SETTLE_S, min(MAX_PAUSE_S, took) - paused))


def _log_plan(plan: Plan, *, observing: float, deciding: float) -> None:
    """Log the counts of decisions at debug level."""
    if LOG.isEnabledFor(logging.DEBUG):
        counts_text = ", ".join(
            f"{n} {kind}" for kind, n in Counter(d.kind for d in plan.decisions).items()
        )
        LOG.debug(
            "observed in %.3f s, decided in %.3f s: %s",
            observing,
            deciding,
            counts_text or "nothing",
        )
