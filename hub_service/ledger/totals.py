"""Running totals of one series: allocated and busy GPU time, by windows of ten seconds.

Pure arithmetic without a clock. A window is identified by its end. A constant allocation costs no
work: its time is added at changes and reads.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

LEVELS_S = (10, 60, 3600)
"""Lengths of the stored windows; each is a multiple of the previous one."""


class Totals(NamedTuple):
    """Sums of a series, in seconds and GPU-seconds."""

    held_s: float = 0.0
    """Time with any allocation."""
    measured_s: float = 0.0
    """Measured part of `held_s`; several devices are weighted by their allocated fractions."""
    allocated_s: float = 0.0
    """Allocated GPU-seconds."""
    used_s: float = 0.0
    """Busy GPU-seconds."""
    idle_s: float = 0.0
    """Allocated GPU-seconds with a load below 1 %."""

    def plus(self, other: "Totals") -> "Totals":
        """Return the sum of both."""
        # Unrolled for speed: a report adds to a thousand series.
        duration, measured, allocated, used, idle = self
        a, b, c, d, e = other
        return Totals(duration + a, measured + b, allocated + c, used + d, idle + e)

    def times(self, seconds: float) -> "Totals":
        """Return the totals after `seconds` at these rates."""
        duration, measured, allocated, used, idle = self
        return Totals(
            duration * seconds,
            measured * seconds,
            allocated * seconds,
            used * seconds,
            idle * seconds,
        )


ZERO = Totals()


class Scope(NamedTuple):
    """Key of a series: the cluster, a project, user, member, workload, node or device."""

    kind: Literal[
        "all", "project", "user", "member", "workload", "node", "device", "reclaimed", "watched"
    ]
    """`member`: a user within a project. `reclaimed`: a project's idle GPUs that other projects
    used. `watched`: the ledger itself, with one GPU while it runs; time outside of it is a gap,
    time inside without an allocation is a zero."""
    project: str = ""
    user: str = ""
    workload: str = ""
    device: str = ""
    node: str = ""


class Series:
    """Running totals of one scope, stored and since the ledger was opened. Not thread-safe."""

    __slots__ = ("_gpus", "_settled_until", "accrued", "base", "id", "opened", "scope", "unwritten")

    def __init__(
        self, scope: Scope, opened: float, id_: int | None = None, base: Totals = ZERO
    ) -> None:
        """Start from the stored totals `base`; `id_` is None until the database has the series."""
        self.scope = scope
        self.opened = opened
        self.id = id_
        self.base = base
        """Stored totals at the time when the ledger was opened."""
        self.accrued = ZERO
        """Amounts added since."""
        self.unwritten: dict[int, Totals] = {}
        """The part of `accrued` that is not written yet, by window."""
        self._gpus = 0.0
        self._settled_until = 0.0

    @property
    def totals(self) -> Totals:
        """Stored and counted totals, as of the last `settle`."""
        return self.base.plus(self.accrued)

    def set_gpus(self, at: float, gpus: float) -> None:
        """Set the allocated GPUs from `at` on."""
        self.settle(at)
        self._gpus = gpus

    def settle(self, at: float) -> None:
        """Add the allocation up to `at`; an earlier time changes nothing."""
        if self._gpus and at > self._settled_until:
            self.add(windows(self._settled_until, at), Totals(held_s=1.0, allocated_s=self._gpus))
        self._settled_until = max(at, self._settled_until)

    def add(self, parts: Sequence[tuple[int, float]], rates: Totals) -> None:
        """Add `rates` over these parts of windows, each a window and its seconds."""
        for window, seconds in parts:
            amounts = rates.times(seconds)
            self.accrued = self.accrued.plus(amounts)
            self.enqueue(window, amounts)

    def enqueue(self, window: int, amounts: Totals) -> None:
        """Queue amounts of a window for the next write."""
        queued = self.unwritten.get(window)
        self.unwritten[window] = amounts if queued is None else queued.plus(amounts)


def window_of(at: float, level: int = LEVELS_S[0]) -> int:
    """Return the end of the window that contains a time; a window includes its end.

    >>> window_of(20), window_of(20.5), window_of(61, 60)
    (20, 30, 120)
    """
    return -(-math.ceil(at) // level) * level


def windows(start: float, end: float) -> list[tuple[int, float]]:
    """Split a time range at the ends of windows; return each window and its seconds.

    >>> windows(9.75, 21.5)
    [(10, 0.25), (20, 10), (30, 1.5)]
    """
    pieces = []
    while start < end:
        window = (int(start) // LEVELS_S[0] + 1) * LEVELS_S[0]
        pieces.append((window, min(end, window) - start))
        start = window
    return pieces
