"""Mutants that nobody can notice, each with the reason: what they change makes no difference.

Knows them by module, function, a part of the changed line and what is changed, so that a line may
move. `mutants` leaves them out of what it counts, and says how many they are.
"""

from __future__ import annotations

from typing import NamedTuple


class Equivalent(NamedTuple):
    """A change in a line that has `text` in it; `what` is the change, or * for each of them."""

    text: str
    what: str
    why: str


EQUIVALENT: dict[tuple[str, str], tuple[Equivalent, ...]] = {}
