"""Running totals of one series, and the last 15 minutes of it second by second.

Pure arithmetic without a clock: what is added says to which second it belongs. Totals only grow,
so that an average over any range is a difference of two of them. Used by the rest of the ledger.
"""

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import Literal, NamedTuple

__all__ = ["LEVELS_S", "MEMORY_S", "Field", "Scope", "Series", "Totals"]

MEMORY_S = 15 * 60
"""How long single seconds are kept."""

LEVELS_S = (10, 60, 3600)
"""Grids of the stored rows, each part of the one before."""


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


class Field(IntEnum):
    """Position of each figure in `Totals`."""

    HELD = 0
    MEASURED = 1
    ALLOCATED = 2
    USED = 3
    IDLE = 4


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
        "_cells",
        "_newest",
        "_seconds",
        "_totals",
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
        self._totals = list(totals)
        self.written: dict[int, Totals | None] = {
            level: totals if level <= level_s or totals == ZERO else None for level in LEVELS_S
        }
        """The totals of the last row on each grid; None where that is not known."""
        self._cells: array[float] | None = None
        self._seconds: array[int] | None = None
        self._newest = 0

    def add(self, second: int, field: Field, amount: float) -> None:
        """Count `amount` as of the second that begins at `second`."""
        if self._cells is None or self._seconds is None:
            self._cells = array("d", bytes(8 * len(Field) * MEMORY_S))
            self._seconds = array("q", bytes(8 * MEMORY_S))
            self._newest = second
        slot = second % MEMORY_S
        cell = slot * len(Field)
        if self._seconds[slot] != second:
            self._seconds[slot] = second
            for offset in range(len(Field)):
                self._cells[cell + offset] = 0.0
        self._newest = max(self._newest, second)
        self._cells[cell + field] += amount
        self._totals[field] += amount

    def now(self) -> Totals:
        """Return the totals with everything that was added."""
        return Totals(*self._totals)

    def at(self, instants: Sequence[int]) -> list[Totals]:
        """Return the totals at whole seconds, given and returned oldest first.

        None of them may be more than `MEMORY_S` before the newest second.
        """
        found: list[Totals] = []
        totals = self._totals.copy()
        second = self._newest
        for instant in reversed(instants):
            # No further than memory reaches: what lies before it was added before.
            while second >= instant and second > self._newest - MEMORY_S:
                for offset, amount in enumerate(self._cell(second)):
                    totals[offset] -= amount
                second -= 1
            found.append(Totals(*totals))
        found.reverse()
        return found

    def _cell(self, second: int) -> Sequence[float]:
        if self._cells is None or self._seconds is None:
            return ()
        slot = second % MEMORY_S
        if self._seconds[slot] != second:
            return ()
        return self._cells[slot * len(Field) : (slot + 1) * len(Field)]
