"""Running totals of one series, and the last 15 minutes of it: what it held, what was measured.

Pure arithmetic without a clock. What is held is kept as steps, and costs nothing while it stays the
same; what was measured is kept by the second. Totals only grow, so that an average over any range
is a difference of two of them. Used by the rest of the ledger.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

MEMORY_S = 15 * 60
"""How long single seconds are kept."""

LEVELS_S = (10, 60, 3600)
"""Grids of the stored rows, each part of the one before."""

FIGURES = 3
"""In a second's cell: measured, used and idle, in this order."""


class Totals(NamedTuple):
    """What a series has added up to, in seconds and GPU-seconds."""

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

    def minus(self, other: "Totals") -> "Totals":
        """Return what was added since."""
        return Totals(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    def plus(self, other: "Totals") -> "Totals":
        """Return both together."""
        return Totals(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


ZERO = Totals()


class Scope(NamedTuple):
    """What a series is about: everything, a project, a user, both, a workload, a node, a device."""

    kind: Literal["all", "project", "user", "member", "workload", "node", "device", "reclaimed"]
    """`reclaimed` is what a project's idle GPUs were given to others for."""
    project: str = ""
    user: str = ""
    workload: str = ""
    device: str = ""
    node: str = ""


class Series:
    """One scope's totals. Not thread-safe."""

    __slots__ = (
        "_allocated_s",
        "_cells",
        "_held_s",
        "_measured",
        "_newest",
        "_seconds",
        "_steps",
        "closed",
        "id",
        "opened",
        "scope",
        "written",
    )

    def __init__(
        self, id_: int, scope: Scope, opened: float, totals: Totals = ZERO, level_s: int = 0
    ) -> None:
        """Go on from the totals of a stored row, which stands for grids up to `level_s`."""
        self.id = id_
        self.scope = scope
        self.opened = opened
        self.closed = False
        """Whether its workload was deleted: its next row is its last."""
        self.written: dict[int, Totals | None] = {
            level: totals if level <= level_s or totals == ZERO else None for level in LEVELS_S
        }
        """The totals of the last row on each grid; None where that is not known."""
        self._held_s = totals.held_s
        self._allocated_s = totals.allocated_s
        self._steps: deque[tuple[float, float]] = deque([(opened, 0.0)])
        """The GPUs held, each from an instant on; the totals are those of the newest step."""
        self._measured = [totals.measured_s, totals.used_s, totals.idle_s]
        self._cells: array[float] | None = None
        self._seconds: array[int] | None = None
        self._newest = 0

    def hold(self, at: float, gpus: float) -> None:
        """Note that it holds so many GPUs from `at` on, which is never before an earlier one."""
        since, before = self._steps[-1]
        if gpus == before:
            return
        if before:
            self._held_s += at - since
            self._allocated_s += (at - since) * before
        self._steps.append((at, gpus))
        while len(self._steps) > 1 and self._steps[1][0] < at - MEMORY_S:
            self._steps.popleft()

    def add(
        self,
        seconds: Sequence[tuple[int, float]],
        *,
        measured: float = 0.0,
        used: float = 0.0,
        idle: float = 0.0,
    ) -> None:
        """Count what was measured, each figure per second, in these parts of single seconds."""
        if self._cells is None or self._seconds is None:
            self._cells = array("d", bytes(8 * FIGURES * MEMORY_S))
            self._seconds = array("q", bytes(8 * MEMORY_S))
            self._newest = 0
        cells, totals = self._cells, self._measured
        # Each second for a thousand series: no loop over the figures, no call.
        for second, part in seconds:
            slot = second % MEMORY_S
            cell = slot * FIGURES
            if self._seconds[slot] != second:
                self._seconds[slot] = second
                cells[cell] = cells[cell + 1] = cells[cell + 2] = 0.0
            self._newest = max(self._newest, second)
            amount = part * measured
            cells[cell] += amount
            totals[0] += amount
            amount = part * used
            cells[cell + 1] += amount
            totals[1] += amount
            amount = part * idle
            cells[cell + 2] += amount
            totals[2] += amount

    @property
    def remembers_seconds(self) -> bool:
        """Tell whether any single second is remembered, which takes 29 KiB."""
        return self._cells is not None

    def rest(self, now: float) -> None:
        """Give back what single seconds take, where none of them is remembered any more."""
        if self._cells is not None and self._newest < now - MEMORY_S:
            self._cells = self._seconds = None

    def now(self, until: float) -> Totals:
        """Return the totals of everything before `until`, which no step comes after."""
        since, gpus = self._steps[-1]
        lasts = max(0.0, until - since) if gpus else 0.0
        measured, used, idle = self._measured
        allocated = self._allocated_s + lasts * gpus
        return Totals(self._held_s + lasts, measured, allocated, used, idle)

    def at(self, instants: Sequence[int], until: float) -> list[Totals]:
        """Return the totals at whole seconds, given and returned oldest first.

        None of them may be more than `MEMORY_S` before `until`, which no step comes after.
        """
        found: list[Totals] = []
        now = self.now(until)
        held, allocated, measured = now.held_s, now.allocated_s, self._measured.copy()
        second, step = self._newest, len(self._steps) - 1
        for instant in reversed(instants):
            # No further than memory reaches: what lies before it was added before.
            while second >= instant and second > self._newest - MEMORY_S:
                for offset, amount in enumerate(self._cell(second)):
                    measured[offset] -= amount
                second -= 1
            while until > instant and step >= 0:
                since, gpus = self._steps[step]
                from_ = max(since, instant)
                if gpus and from_ < until:
                    held -= until - from_
                    allocated -= (until - from_) * gpus
                until = min(until, from_)
                if since > instant:
                    step -= 1
            of_it, used, idle = measured
            found.append(Totals(held, of_it, allocated, used, idle))
        found.reverse()
        return found

    def _cell(self, second: int) -> Sequence[float]:
        if self._cells is None or self._seconds is None:
            return ()
        slot = second % MEMORY_S
        if self._seconds[slot] != second:
            return ()
        return self._cells[slot * FIGURES : (slot + 1) * FIGURES]
