"""Pure decisions about idle allocations, from rules, measurements and time.

Idle time is measured time: unmeasured time counts neither as idle nor as use. An active second
resets it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from runai.hub_service.ledger import Totals
from runai.hub_service.model.records import (
    IDLE_BELOW,
    KEEP_S,
    KEEPS,
    NEVER_USED_S,
    IdleRules,
    WorkloadRecord,
)
from runai.hub_service.scheduler.model.quantity import count_text

CPU_BUSY = 0.5
"""Busy CPU cores above which a kernel counts as working, although its GPU is idle."""

GAP_S = 15.0
"""Longest measured time between two reports, in seconds; the rest counts as unmeasured."""


class Do(StrEnum):
    """Kinds of action on a workload with idle GPUs."""

    BADGE = "badge"
    NOTIFY = "notify"
    EXTEND = "extend"
    RELEASE = "release"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measurement of one workload in the interval that ends at `at`."""

    at: float
    interval: float
    busy: float | None
    """Utilization of the busiest device, 0 to 1; None if not measured."""
    on_device: bool
    """True if a program of it, except a notebook server, uses a device."""
    cpu: float | None = None
    """CPU cores used by these programs; None if not measured."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """Idle state of a workload since it got its devices."""

    at: float
    """Time of the last measurement."""
    idle_s: float = 0.0
    """Measured idle seconds since the last activity."""
    unused_s: float = 0.0
    """Measured seconds since it got its devices, without any program on them."""
    used: bool = False
    level: Do | None = None
    """Last action in this idle period."""
    keeps: int = 0
    """Number of extensions by its owner in this idle period."""
    extended: bool = False
    """True if it got an extension for work on the CPU."""


@dataclass(frozen=True, slots=True)
class IdleAction:
    """Action to carry out now, and the numbers that justify it."""

    do: Do
    idle_s: float
    limit_s: int
    never_used: bool = False


def evaluate(
    rules: IdleRules, known: Idleness, now: Measurement, *, releases: bool = True
) -> tuple[Idleness, IdleAction | None]:
    """Return the new idle state after a measurement, and the action to carry out.

    `releases` says if GPUs can be released: only sessions continue without them.
    """
    if now.at <= known.at:
        return known, None
    seconds = min(now.interval, now.at - known.at, GAP_S)
    if now.busy is None:
        return replace(known, at=now.at), None
    if now.busy >= IDLE_BELOW:
        return Idleness(now.at, used=True), None
    used = known.used or now.on_device
    # This runs hundreds of times a second, and `replace` takes three times as long.
    known = Idleness(
        now.at,
        known.idle_s + seconds,
        0.0 if used else known.unused_s + seconds,
        used,
        known.level,
        known.keeps,
        known.extended,
    )
    return _escalate(known, now, _due(rules, known, releases=releases))


def _escalate(
    known: Idleness, now: Measurement, action: IdleAction | None
) -> tuple[Idleness, IdleAction | None]:
    if action is None:
        return known, None
    if action.do in {Do.RELEASE, Do.STOP} and not known.extended and (now.cpu or 0.0) >= CPU_BUSY:
        return replace(known, extended=True), replace(action, do=Do.EXTEND)
    if action.do in {Do.BADGE, Do.NOTIFY} and not _is_escalation(action.do, known.level):
        return known, None
    return replace(known, level=action.do), action


def with_extension(known: Idleness) -> Idleness | None:
    """Return the state with 30 more minutes; None after too many extensions."""
    return replace(known, keeps=known.keeps + 1) if known.keeps < KEEPS else None


def due_in(rules: IdleRules, known: Idleness, *, releases: bool = True) -> tuple[Do, float] | None:
    """Return the next release or stop, and the seconds until then. None if there is none."""
    return min(
        (
            (do, max(0.0, limit + _extension(known, limit) - spent))
            for do, spent, limit in _limits(rules, known, releases=releases)
        ),
        key=lambda one: one[1],
        default=None,
    )


def _due(rules: IdleRules, known: Idleness, *, releases: bool) -> IdleAction | None:
    for do, spent, limit in _limits(rules, known, releases=releases):
        if spent >= limit + _extension(known, limit):
            return IdleAction(do, known.idle_s, limit, never_used=spent != known.idle_s)
    for do, after in ((Do.NOTIFY, rules.notify_s), (Do.BADGE, rules.badge_s)):
        if after is not None and known.idle_s >= after:
            return IdleAction(do, known.idle_s, after)
    return None


def _limits(rules: IdleRules, known: Idleness, *, releases: bool) -> list[tuple[Do, float, int]]:
    """Return possible releases and stops, with the time counted and the limit of each."""
    found = []
    if rules.stop_s is not None:
        found.append((Do.STOP, known.idle_s, rules.stop_s))
    if releases and rules.release_s is not None:
        found.append((Do.RELEASE, known.idle_s, rules.release_s))
        if not known.used:
            found.append((Do.RELEASE, known.unused_s, NEVER_USED_S))
    return found


def _extension(known: Idleness, limit: int) -> float:
    """Return a limit's extension: by the owner, and once for CPU work."""
    return known.keeps * KEEP_S + (limit if known.extended else 0)


def _is_escalation(do: Do, level: Do | None) -> bool:
    ladder = (None, Do.BADGE, Do.NOTIFY)
    return level in ladder and ladder.index(do) > ladder.index(level)


def evidence(record: WorkloadRecord, action: IdleAction, totals: Totals) -> str:
    """Return a sentence with the measured idle time and GPU-hours."""
    held = count_text(record.allocated)
    if action.never_used:
        first = f"no program has used its {held} since it got it, for {minutes(action.limit_s)}"
    else:
        first = f"it has kept its {held} less than 1 % busy for {minutes(action.idle_s)}"
    used, allocated = totals.used_s / 3600, totals.allocated_s / 3600
    return f"{first} ({used:.2f} of {allocated:.2f} GPU-hours used so far)"


def minutes(seconds: float) -> str:
    """Format a time in whole minutes, or in seconds below one minute.

    >>> minutes(1805), minutes(42)
    ('30 min', '42 s')
    """
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
