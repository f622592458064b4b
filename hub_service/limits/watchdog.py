"""What becomes of a workload that is over its memory on a device: told, interrupted, ended.

A ladder for each workload and device, pure: samples and the time go in, steps come out. Whoever
calls it (`agent.keeping`) measures, sends the signals and tells people. The limits of the
frameworks come first (`hook`); this is for what they do not see.
"""

import signal
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from runai.hub_service.limits.tiers import gib

SAMPLES_OVER = 3
"""A peak of a second or two is nobody's trouble."""

NOTICE_S = 3.0
"""From the notice to the first signal."""

RUNG_S = 2.0
"""From one signal to the next. One sample a second: over at 0, told at 2, killed at 9 s at most."""

EARLY_S = 0.25
"""Samples come once a second, not to the millisecond: so much earlier is in time."""

SLACK_MIB = 512
"""Over the limit by so much, or by 2 %, is still within it: frameworks know only their own part."""


class Rung(StrEnum):
    """What is done to a workload that is over its limit, in this order; `back`: it no longer is."""

    NOTICE = "notice"
    INTERRUPT = "interrupt"
    TERMINATE = "terminate"
    KILL = "kill"
    BACK = "back"

    @property
    def signal(self) -> signal.Signals | None:
        """Return what is sent, if anything."""
        return _SIGNALS.get(self)


_SIGNALS: Mapping[Rung, signal.Signals] = {
    Rung.INTERRUPT: signal.SIGINT,
    Rung.TERMINATE: signal.SIGTERM,
    Rung.KILL: signal.SIGKILL,
}
_NEXT = {Rung.INTERRUPT: Rung.TERMINATE, Rung.TERMINATE: Rung.KILL, Rung.KILL: Rung.KILL}


class Member(NamedTuple):
    """A process of a workload on a device; number and start time together name it."""

    pid: int
    created: float
    memory_mib: int
    name: str = ""
    spared: bool = False
    """A notebook server: it is not ended while anything else can be."""

    def is_same(self, other: "Member") -> bool:
        """Tell whether it is the same process, whatever it holds."""
        return (self.pid, self.created) == (other.pid, other.created)


class Holding(NamedTuple):
    """What a workload may use of a device, and the processes that use it."""

    workload: str
    device: str
    """UUID."""
    limit_mib: int
    members: tuple[Member, ...]

    @property
    def used_mib(self) -> int:
        """Return the sum over its processes."""
        return sum(member.memory_mib for member in self.members)

    @property
    def is_over(self) -> bool:
        """Tell whether it uses more than its limit and what is overlooked.

        >>> member = Member(7, 0.0, 8700)
        >>> Holding("vision/a", "GPU-0", 8192, (member,)).is_over
        False
        >>> Holding("vision/a", "GPU-0", 8000, (member,)).is_over
        True
        """
        return self.used_mib > self.limit_mib + max(self.limit_mib // 50, SLACK_MIB)

    def still(self, target: Member | None) -> Member | None:
        """Return the process as it is now, if it is still the one to deal with."""
        here = (m for m in self.members if target is not None and m.is_same(target))
        found = next(here, None)
        # A server was alone; a kernel has come since.
        others = found is not None and found.spared and not self.largest().spared
        return None if others else found

    def largest(self) -> Member:
        """Return the process whose end gives most back."""
        return max(self.members, key=lambda m: (not m.spared, m.memory_mib, m.created))


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is to be done and told now."""

    at: float
    rung: Rung
    workload: str
    device: str
    limit_mib: int
    used_mib: int
    target: Member | None = None

    def sentence(self) -> str:
        """Say it to the workload's owner."""
        share = f"{gib(self.used_mib)} of device memory, and its share is {gib(self.limit_mib)}"
        if self.target is None:
            if self.rung is Rung.BACK:
                return f"is within its share of device memory again ({gib(self.used_mib)})"
            return f"uses {share}: in {NOTICE_S:.0f} s its largest process is interrupted"
        verb = _VERBS[self.rung]
        name = f"{self.target.name or 'process'} ({self.target.pid})"
        return f"uses {share}: {name} with {gib(self.target.memory_mib)} is {verb}"


_VERBS = {
    Rung.INTERRUPT: "interrupted",
    Rung.TERMINATE: "told to end",
    Rung.KILL: "killed",
}


@dataclass(slots=True)
class _Ladder:
    samples: int = 0
    told: float | None = None
    target: Member | None = None
    rung: Rung = Rung.NOTICE
    since: float = 0.0


@dataclass(slots=True)
class Watchdog:
    """Remembers who is over its limit, and how far up the ladder it is."""

    _ladders: dict[tuple[str, str], _Ladder] = field(default_factory=dict)

    def look(
        self,
        now: float,
        holdings: Iterable[Holding],
        unknown: AbstractSet[str] = frozenset(),
    ) -> list[Step]:
        """Return what is to be done after a sample of all holdings.

        Of the devices in `unknown` there is none this time: nothing is done about them, and nothing
        is forgotten. `now` is in seconds of any clock that never goes back.
        """
        seen = {(h.workload, h.device): h for h in holdings if h.device not in unknown}
        for key in [k for k in self._ladders if k not in seen and k[1] not in unknown]:
            del self._ladders[key]
        steps = (self._look_at(now, key, holding) for key, holding in seen.items())
        return [step for step in steps if step is not None]

    def _look_at(self, now: float, key: tuple[str, str], holding: Holding) -> Step | None:
        if not holding.is_over:
            ladder = self._ladders.pop(key, None)
            told = ladder is not None and ladder.told is not None
            # Of who has nothing left there, what was done about it is the last word.
            return _step(now, Rung.BACK, holding) if told and holding.members else None
        ladder = self._ladders.setdefault(key, _Ladder())
        ladder.samples += 1
        if ladder.samples < SAMPLES_OVER:
            return None
        if ladder.told is None:
            ladder.told = now
            return _step(now, Rung.NOTICE, holding)
        target = holding.still(ladder.target)
        if target is None:
            # None yet, or it is gone and the rest is still too much: each begins at the first rung.
            if now - ladder.told < NOTICE_S - EARLY_S:
                return None
            target, rung = holding.largest(), Rung.INTERRUPT
        elif now - ladder.since < RUNG_S - EARLY_S:
            return None
        else:
            rung = _NEXT[ladder.rung]
        ladder.target, ladder.rung, ladder.since = target, rung, now
        return _step(now, rung, holding, target)


def _step(now: float, rung: Rung, holding: Holding, target: Member | None = None) -> Step:
    return Step(
        now, rung, holding.workload, holding.device, holding.limit_mib, holding.used_mib, target
    )
