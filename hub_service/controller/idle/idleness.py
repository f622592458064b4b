"""Pure decisions about idle allocations, from rules, measurements and time.

Idle time is measured time: unmeasured time counts neither as idle nor as use. An active second
resets it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from runai.hub_service.ledger import Totals
from runai.hub_service.model.records import (
    EXTENSION_S,
    IDLE_BELOW,
    MAX_EXTENSIONS,
    NEVER_USED_S,
    IdleRules,
    WorkloadRecord,
)
from runai.hub_service.scheduler.model.quantity import count_text

CPU_BUSY = 0.5
"""Busy CPU cores above which a kernel counts as working, although its GPU is idle."""

GAP_S = 15.0
"""Longest measured time between two reports, in seconds; the rest counts as unmeasured."""


class IdleActionKind(StrEnum):
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
    level: IdleActionKind | None = None
    """Last action in this idle period."""
    extensions: int = 0
    """Number of extensions by its owner in this idle period."""
    extended: bool = False
    """True if it got an extension for work on the CPU."""


@dataclass(frozen=True, slots=True)
class IdleAction:
    """Action to carry out now, and the numbers that justify it."""

    kind: IdleActionKind
    idle_s: float
    limit_s: int
    never_used: bool = False


def evaluate(
    rules: IdleRules, idleness: Idleness, measurement: Measurement, *, releases: bool = True
) -> tuple[Idleness, IdleAction | None]:
    """Return the new idle state after a measurement, and the action to carry out.

    `releases` says if GPUs can be released: only sessions continue without them.
    """
    if measurement.at <= idleness.at:
        return idleness, None
    seconds = min(measurement.interval, measurement.at - idleness.at, GAP_S)
    if measurement.busy is None:
        return replace(idleness, at=measurement.at), None
    if measurement.busy >= IDLE_BELOW:
        return Idleness(measurement.at, used=True), None
    used = idleness.used or measurement.on_device
    # This runs hundreds of times a second, and `replace` takes three times as long.
    idleness = Idleness(
        measurement.at,
        idleness.idle_s + seconds,
        0.0 if used else idleness.unused_s + seconds,
        used,
        idleness.level,
        idleness.extensions,
        idleness.extended,
    )
    return _escalate(idleness, measurement, _due_action(rules, idleness, releases=releases))


def _escalate(
    idleness: Idleness, measurement: Measurement, action: IdleAction | None
) -> tuple[Idleness, IdleAction | None]:
    """Return the action if it is a new one; for work on the CPU an extension instead."""
    if action is None:
        return idleness, None
    may_extend = not idleness.extended and (measurement.cpu or 0.0) >= CPU_BUSY
    if may_extend and action.kind in {IdleActionKind.RELEASE, IdleActionKind.STOP}:
        return replace(idleness, extended=True), replace(action, kind=IdleActionKind.EXTEND)
    is_warning = action.kind in {IdleActionKind.BADGE, IdleActionKind.NOTIFY}
    if is_warning and not _is_escalation(action.kind, idleness.level):
        return idleness, None
    return replace(idleness, level=action.kind), action


def with_extension(idleness: Idleness) -> Idleness | None:
    """Return the state with 30 more minutes; None after too many extensions."""
    if idleness.extensions >= MAX_EXTENSIONS:
        return None
    return replace(idleness, extensions=idleness.extensions + 1)


def due_in(
    rules: IdleRules, idleness: Idleness, *, releases: bool = True
) -> tuple[IdleActionKind, float] | None:
    """Return the next release or stop, and the seconds until then. None if there is none."""
    return min(
        (
            (kind, max(0.0, limit + _extension(idleness, limit) - spent))
            for kind, spent, limit in _limits(rules, idleness, releases=releases)
        ),
        key=lambda one: one[1],
        default=None,
    )


def _due_action(rules: IdleRules, idleness: Idleness, *, releases: bool) -> IdleAction | None:
    """Return the strongest action whose limit has passed."""
    for kind, spent, limit in _limits(rules, idleness, releases=releases):
        if spent >= limit + _extension(idleness, limit):
            return IdleAction(kind, idleness.idle_s, limit, never_used=spent != idleness.idle_s)
    warnings = ((IdleActionKind.NOTIFY, rules.notify_s), (IdleActionKind.BADGE, rules.badge_s))
    for kind, after in warnings:
        if after is not None and idleness.idle_s >= after:
            return IdleAction(kind, idleness.idle_s, after)
    return None


def _limits(
    rules: IdleRules, idleness: Idleness, *, releases: bool
) -> list[tuple[IdleActionKind, float, int]]:
    """Return possible releases and stops, with the time counted and the limit of each."""
    limits = []
    if rules.stop_s is not None:
        limits.append((IdleActionKind.STOP, idleness.idle_s, rules.stop_s))
    if releases and rules.release_s is not None:
        limits.append((IdleActionKind.RELEASE, idleness.idle_s, rules.release_s))
        if not idleness.used:
            limits.append((IdleActionKind.RELEASE, idleness.unused_s, NEVER_USED_S))
    return limits


def _extension(idleness: Idleness, limit: int) -> float:
    """Return a limit's extension: by the owner, and once for CPU work."""
    return idleness.extensions * EXTENSION_S + (limit if idleness.extended else 0)


def _is_escalation(kind: IdleActionKind, level: IdleActionKind | None) -> bool:
    """Return True if a badge or a warning goes beyond the last action."""
    ladder = (None, IdleActionKind.BADGE, IdleActionKind.NOTIFY)
    return level in ladder and ladder.index(kind) > ladder.index(level)


def evidence(record: WorkloadRecord, action: IdleAction, totals: Totals) -> str:
    """Return a sentence with the measured idle time and GPU-hours."""
    gpus = count_text(record.allocated)
    if action.never_used:
        first = f"no program has used its {gpus} since it got it, for {minutes(action.limit_s)}"
    else:
        first = f"it has kept its {gpus} less than 1 % busy for {minutes(action.idle_s)}"
    used, allocated = totals.used_s / 3600, totals.allocated_s / 3600
    return f"{first} ({used:.2f} of {allocated:.2f} GPU-hours used so far)"


def minutes(seconds: float) -> str:
    """Format a time in whole minutes, or in seconds below one minute.

    >>> minutes(1805), minutes(42)
    ('30 min', '42 s')
    """
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
