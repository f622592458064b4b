"""Decide about idle allocations: rules, what was measured and time in, actions out. Pure.

Idle time is measured time: what nobody measured counts for nobody, neither as idle nor as use. An
active second begins anew. Called by `watch`, once for each report of a workload that holds GPUs.
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
"""Processor cores above which a kernel is at work, though not on the GPU."""

GAP_S = 15.0
"""A longer time between two reports was measured by nobody."""


class Do(StrEnum):
    """What is to be done."""

    BADGE = "badge"
    NOTIFY = "notify"
    EXTEND = "extend"
    RELEASE = "release"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload in the interval that ends at `at`."""

    at: float
    interval: float
    busy: float | None
    """The busiest of its devices, 0..1; None: not measured."""
    on_device: bool
    """Whether any program of it, notebook servers left out, is on a device."""
    cpu: float | None = None
    """Processor cores that those programs kept busy; None: not measured."""


@dataclass(frozen=True, slots=True)
class Idleness:
    """What is remembered of a workload since it got its devices."""

    at: float
    """Until when it was looked at."""
    idle_s: float = 0.0
    """Measured idle seconds since it was active last."""
    unused_s: float = 0.0
    """Measured seconds since it got its devices, while nothing was ever on them."""
    used: bool = False
    level: Do | None = None
    """The last thing that was done in this idle stretch."""
    keeps: int = 0
    """How often its owner asked for more time in this stretch."""
    extended: bool = False
    """Whether it was given more time for being at work on the processor."""


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done now, and the numbers that it is for."""

    do: Do
    idle_s: float
    limit_s: int
    never_used: bool = False


def look(
    rules: IdleRules, known: Idleness, now: Measured, *, releases: bool = True
) -> tuple[Idleness, Action | None]:
    """Return what is known after a measurement, and what is to be done about it.

    `releases` says whether there is anything to release: only sessions go on without their GPUs.
    """
    if now.at <= known.at:
        return known, None
    seconds = min(now.interval, now.at - known.at, GAP_S)
    if now.busy is None:
        return replace(known, at=now.at), None
    if now.busy >= IDLE_BELOW:
        return Idleness(now.at, used=True), None
    used = known.used or now.on_device
    # Of hundreds each second: `replace` takes three times as long.
    known = Idleness(
        now.at,
        known.idle_s + seconds,
        0.0 if used else known.unused_s + seconds,
        used,
        known.level,
        known.keeps,
        known.extended,
    )
    return _then(known, now, _due(rules, known, releases=releases))


def _then(known: Idleness, now: Measured, action: Action | None) -> tuple[Idleness, Action | None]:
    if action is None:
        return known, None
    if action.do in {Do.RELEASE, Do.STOP} and not known.extended and (now.cpu or 0.0) >= CPU_BUSY:
        return replace(known, extended=True), replace(action, do=Do.EXTEND)
    if action.do in {Do.BADGE, Do.NOTIFY} and not _is_more(action.do, known.level):
        return known, None
    return replace(known, level=action.do), action


def kept(known: Idleness) -> Idleness | None:
    """Give 30 more minutes; None where it was asked for too often."""
    return replace(known, keeps=known.keeps + 1) if known.keeps < KEEPS else None


def due_in(rules: IdleRules, known: Idleness, *, releases: bool = True) -> tuple[Do, float] | None:
    """Say what is taken next if it stays idle, and in how many seconds; None: nothing is."""
    return min(
        (
            (do, max(0.0, limit + _more(known, limit) - spent))
            for do, spent, limit in _limits(rules, known, releases=releases)
        ),
        key=lambda one: one[1],
        default=None,
    )


def _due(rules: IdleRules, known: Idleness, *, releases: bool) -> Action | None:
    for do, spent, limit in _limits(rules, known, releases=releases):
        if spent >= limit + _more(known, limit):
            return Action(do, known.idle_s, limit, never_used=spent != known.idle_s)
    for do, told in ((Do.NOTIFY, rules.notify_s), (Do.BADGE, rules.badge_s)):
        if told is not None and known.idle_s >= told:
            return Action(do, known.idle_s, told)
    return None


def _limits(rules: IdleRules, known: Idleness, *, releases: bool) -> list[tuple[Do, float, int]]:
    """Return what may be taken: what it is, the time spent towards it, and the limit."""
    found = []
    if rules.stop_s is not None:
        found.append((Do.STOP, known.idle_s, rules.stop_s))
    if releases and rules.release_s is not None:
        found.append((Do.RELEASE, known.idle_s, rules.release_s))
        if not known.used:
            found.append((Do.RELEASE, known.unused_s, NEVER_USED_S))
    return found


def _more(known: Idleness, limit: int) -> float:
    """Return what was added to a limit: by its owner, and once for work on the processor."""
    return known.keeps * KEEP_S + (limit if known.extended else 0)


def _is_more(do: Do, level: Do | None) -> bool:
    ladder = (None, Do.BADGE, Do.NOTIFY)
    return level in ladder and ladder.index(do) > ladder.index(level)


def evidence(record: WorkloadRecord, action: Action, totals: Totals) -> str:
    """Return what was measured: how long it was idle, and what it used of what it held."""
    held = count_text(record.allocated)
    if action.never_used:
        first = f"no program has used its {held} since it got it, for {minutes(action.limit_s)}"
    else:
        first = f"it has kept its {held} less than 1 % busy for {minutes(action.idle_s)}"
    used, allocated = totals.used_s / 3600, totals.allocated_s / 3600
    return f"{first} ({used:.2f} of {allocated:.2f} GPU-hours used so far)"


def minutes(seconds: float) -> str:
    """Return a time in whole minutes, or seconds below one.

    >>> minutes(1805), minutes(42)
    ('30 min', '42 s')
    """
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
