"""Sums of one series: its allocated GPUs and its busy time, by windows of ten seconds.

Pure arithmetic without a clock. A window is named by its end. An allocation costs nothing while it
stays the same: its time is added up at a change and at a question.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

LEVELS_S = (10, 60, 3600)
"""Lengths of the windows that are stored; each is a whole number of the one before."""


class Totals(NamedTuple):
    """Sums of a series, in seconds and GPU-seconds."""

    held_s: float = 0.0
    """Time during which it held anything."""
    measured_s: float = 0.0
    """The part of it that was measured; of several devices, weighted by what it held of them."""
    allocated_s: float = 0.0
    """Allocated GPU-seconds."""
    used_s: float = 0.0
    """GPU-seconds during which devices were busy for it."""
    idle_s: float = 0.0
    """Allocated GPU-seconds of devices on which it was less than 1 % busy."""

    def plus(self, other: "Totals") -> "Totals":
        """Return both together."""
        # No loop: a report adds to a thousand series.
        held, measured, allocated, used, idle = self
        a, b, c, d, e = other
        return Totals(held + a, measured + b, allocated + c, used + d, idle + e)

    def times(self, seconds: float) -> "Totals":
        """Return what rates come to in so many seconds."""
        held, measured, allocated, used, idle = self
        return Totals(
            held * seconds, measured * seconds, allocated * seconds, used * seconds, idle * seconds
        )


ZERO = Totals()


class Scope(NamedTuple):
    """What a series is about: everything, a project, a user, both, a workload, a node, a device."""

    kind: Literal[
        "all", "project", "user", "member", "workload", "node", "device", "reclaimed", "watched"
    ]
    """`reclaimed`: a project's idle GPUs that were given to others. `watched`: the ledger itself,
    which holds one GPU while it watches; outside of that time is a gap, inside a zero."""
    project: str = ""
    user: str = ""
    workload: str = ""
    device: str = ""
    node: str = ""


class Series:
    """One scope's sums: those that are stored, and those since it was opened. Not thread-safe."""

    __slots__ = ("_gpus", "_since", "base", "counted", "id", "opened", "scope", "waiting")

    def __init__(
        self, scope: Scope, opened: float, id_: int | None = None, base: Totals = ZERO
    ) -> None:
        """Begin with what is stored; `id_` is None until something is."""
        self.scope = scope
        self.opened = opened
        self.id = id_
        self.base = base
        """What was stored when the ledger was opened."""
        self.counted = ZERO
        """What was added since."""
        self.waiting: dict[int, Totals] = {}
        """The part of it that is not written yet, by window."""
        self._gpus = 0.0
        self._since = 0.0

    @property
    def totals(self) -> Totals:
        """What it has added up to, as of the last time it was settled."""
        return self.base.plus(self.counted)

    def hold(self, at: float, gpus: float) -> None:
        """Note that it holds so many GPUs from `at` on."""
        self.settle(at)
        self._gpus = gpus

    def settle(self, at: float) -> None:
        """Count what it held until `at`; an earlier time changes nothing."""
        if self._gpus and at > self._since:
            self.add(windows(self._since, at), Totals(held_s=1.0, allocated_s=self._gpus))
        self._since = max(at, self._since)

    def add(self, parts: Sequence[tuple[int, float]], rates: Totals) -> None:
        """Count so much per second in these parts of windows."""
        for window, seconds in parts:
            amounts = rates.times(seconds)
            self.counted = self.counted.plus(amounts)
            self.wait(window, amounts)

    def wait(self, window: int, amounts: Totals) -> None:
        """Note that these amounts are to be written."""
        before = self.waiting.get(window)
        self.waiting[window] = amounts if before is None else before.plus(amounts)


def window_of(at: float, level: int = LEVELS_S[0]) -> int:
    """Return the end of the window that a time is in, or at the end of.

    >>> window_of(20), window_of(20.5), window_of(61, 60)
    (20, 30, 120)
    """
    return -(-math.ceil(at) // level) * level


def windows(start: float, end: float) -> list[tuple[int, float]]:
    """Cut a time at the ends of windows.

    >>> windows(9.75, 21.5)
    [(10, 0.25), (20, 10), (30, 1.5)]
    """
    found = []
    while start < end:
        window = (int(start) // LEVELS_S[0] + 1) * LEVELS_S[0]
        found.append((window, min(end, window) - start))
        start = window
    return found
