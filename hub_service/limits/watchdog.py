"""Escalation for workloads over their device memory limit: notify, interrupt, terminate, kill.

One ladder per workload and device. Pure: samples and the time go in, steps come out;
`agent.enforcement` sends the signals and notices. The frameworks' own limits apply first (`hook`);
the watchdog handles memory that they do not count.
"""

import signal
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from runai.hub_service.limits.tiers import gib

SAMPLES_OVER = 3
"""Consecutive samples over the limit before the notice. Peaks of a second or two are ignored."""

NOTICE_S = 3.0
"""Time from the notice to the first signal."""

FREE_S = 10.0
"""Time from the interrupt to SIGTERM, which ends a kernel: a notebook frees memory by hand."""

KILL_S = 2.0
"""Time from SIGTERM to SIGKILL. With one sample a second, a workload over its limit at 0 s is
notified at 2 s, interrupted at 5 s, told to end at 15 s and killed at 17 s."""

EARLY_S = 0.25
"""Tolerance of the waits above: samples come once a second, not to the millisecond."""

SLACK_MIB = 512
"""Tolerated excess, or 2 % of the limit if that is more. Frameworks count only their own part."""


class Rung(StrEnum):
    """Steps of the escalation in order; `back`: the workload is within its limit again."""

    NOTICE = "notice"
    INTERRUPT = "interrupt"
    TERMINATE = "terminate"
    KILL = "kill"
    BACK = "back"

    @property
    def signal(self) -> signal.Signals | None:
        """Return the signal of this step, if any."""
        return _SIGNALS.get(self)


_SIGNALS: Mapping[Rung, signal.Signals] = {
    Rung.INTERRUPT: signal.SIGINT,
    Rung.TERMINATE: signal.SIGTERM,
    Rung.KILL: signal.SIGKILL,
}
_WAIT_S = {Rung.INTERRUPT: FREE_S}
_NEXT = {Rung.INTERRUPT: Rung.TERMINATE, Rung.TERMINATE: Rung.KILL, Rung.KILL: Rung.KILL}


class WatchedProcess(NamedTuple):
    """A process of a workload on a device; PID and start time identify it."""

    pid: int
    created: float
    memory_mib: int
    name: str = ""
    spared: bool = False
    """True for a notebook server: it is stopped only after all other processes."""

    def is_same(self, other_process: "WatchedProcess") -> bool:
        """Return True for the same process, regardless of its memory."""
        return (self.pid, self.created) == (other_process.pid, other_process.created)


class Holding(NamedTuple):
    """Memory limit of a workload on a device, and its processes there."""

    workload: str
    device: str
    """UUID."""
    limit_mib: int
    members: tuple[WatchedProcess, ...]

    @property
    def used_mib(self) -> int:
        """Return the memory of all its processes, in MiB."""
        return sum(member.memory_mib for member in self.members)

    @property
    def is_over(self) -> bool:
        """Return True if its memory exceeds the limit plus the tolerated excess.

        >>> member = WatchedProcess(7, 0.0, 8700)
        >>> Holding("vision/a", "GPU-0", 8192, (member,)).is_over
        False
        >>> Holding("vision/a", "GPU-0", 8000, (member,)).is_over
        True
        """
        return self.used_mib > self.limit_mib + max(self.limit_mib // 50, SLACK_MIB)

    def current_target(self, target_process: WatchedProcess | None) -> WatchedProcess | None:
        """Return the newest measurement of the process being stopped; None: choose another.

        That is if it ended, or if it is a notebook server and a program has started beside it.
        """
        measurements = (
            m for m in self.members if target_process is not None and m.is_same(target_process)
        )
        found = next(measurements, None)
        # The process is a notebook server, and a kernel has started since: stop the kernel.
        is_superseded = found is not None and found.spared and not self.largest().spared
        return None if is_superseded else found

    def largest(self) -> WatchedProcess:
        """Return the process to stop first: the largest, notebook servers last."""
        return max(self.members, key=lambda m: (not m.spared, m.memory_mib, m.created))


@dataclass(frozen=True, slots=True)
class EscalationStep:
    """One due step of the escalation, with the figures for its notice."""

    at: float
    rung: Rung
    workload: str
    device: str
    limit_mib: int
    used_mib: int
    target_process: WatchedProcess | None = None

    def sentence(self) -> str:
        """Return the notice for the workload's owner, without subject and full stop."""
        share = f"{gib(self.used_mib)} of device memory, and its share is {gib(self.limit_mib)}"
        if self.target_process is None:
            if self.rung is Rung.BACK:
                return f"is within its share of device memory again ({gib(self.used_mib)})"
            return f"uses {share}: in {NOTICE_S:.0f} s its largest process is interrupted"
        verb = _VERBS[self.rung]
        name = f"{self.target_process.name or 'process'} ({self.target_process.pid})"
        return f"uses {share}: {name} with {gib(self.target_process.memory_mib)} is {verb}"

    def outlook(self) -> str:
        """Return the rest of the sentence, if the signal was sent: the way out."""
        is_first = self.rung is Rung.INTERRUPT
        return f", and ends in {FREE_S:.0f} s unless it frees memory" if is_first else ""


_VERBS = {
    Rung.INTERRUPT: "interrupted",
    Rung.TERMINATE: "told to end",
    Rung.KILL: "killed",
}


@dataclass(slots=True)
class _Escalation:
    samples: int = 0
    notified_at: float | None = None
    target_process: WatchedProcess | None = None
    rung: Rung = Rung.NOTICE
    since: float = 0.0


@dataclass(slots=True)
class Watchdog:
    """Escalation state of every workload over its limit."""

    _ladders: dict[tuple[str, str], _Escalation] = field(default_factory=dict)

    def check(
        self,
        now: float,
        holdings: Iterable[Holding],
        unknown: AbstractSet[str] = frozenset(),
    ) -> list[EscalationStep]:
        """Return the due steps after a sample of all holdings.

        Devices in `unknown` have no sample this time: they get no step and keep their state. `now`
        is in seconds of a monotonic clock.
        """
        sampled = {(h.workload, h.device): h for h in holdings if h.device not in unknown}
        for key in [k for k in self._ladders if k not in sampled and k[1] not in unknown]:
            del self._ladders[key]
        steps = (self._next_step(now, key, holding) for key, holding in sampled.items())
        return [step for step in steps if step is not None]

    def _next_step(
        self, now: float, key: tuple[str, str], holding: Holding
    ) -> EscalationStep | None:
        """Return the next step against a holding; None: it is within its limit, or time is left."""
        if not holding.is_over:
            ladder = self._ladders.pop(key, None)
            was_notified = ladder is not None and ladder.notified_at is not None
            # No `back` without processes: the notice about their end stays the newest.
            return _step(now, Rung.BACK, holding) if was_notified and holding.members else None
        ladder = self._ladders.setdefault(key, _Escalation())
        ladder.samples += 1
        if ladder.samples < SAMPLES_OVER:
            return None
        if ladder.notified_at is None:
            ladder.notified_at = now
            return _step(now, Rung.NOTICE, holding)
        target_process = holding.current_target(ladder.target_process)
        if target_process is None:
            # No target yet, or it ended and the rest is still too large: start with an interrupt.
            if now - ladder.notified_at < NOTICE_S - EARLY_S:
                return None
            target_process, rung = holding.largest(), Rung.INTERRUPT
        elif now - ladder.since < _WAIT_S.get(ladder.rung, KILL_S) - EARLY_S:
            return None
        else:
            rung = _NEXT[ladder.rung]
        ladder.target_process, ladder.rung, ladder.since = target_process, rung, now
        return _step(now, rung, holding, target_process)


def _step(
    now: float, rung: Rung, holding: Holding, process: WatchedProcess | None = None
) -> EscalationStep:
    return EscalationStep(
        now, rung, holding.workload, holding.device, holding.limit_mib, holding.used_mib, process
    )
