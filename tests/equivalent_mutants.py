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


EQUIVALENT: dict[tuple[str, str], tuple[Equivalent, ...]] = {
    ("shares", "_divide_by_weight"): (
        Equivalent("while again and left > 0", "0 -> -1", "of nothing every part is nothing"),
        Equivalent("while again and left > 0", "> -> >=", "of nothing every part is nothing"),
    ),
    ("order", "__init__"): (
        Equivalent("touched.clear()", "*", "who is ranked once more has the same rank"),
    ),
    ("order", "pop"): (
        Equivalent("if len(waiting) > 1", "> -> >=", "one is in order already"),
        Equivalent("if len(waiting) > 1", "1 -> 0", "one is in order already"),
        Equivalent("touched.clear()", "*", "who is ranked once more has the same rank"),
        Equivalent("self._last = heads[0]", "0 -> -1", "all these heads are of one account"),
        Equivalent("account.age)", "sort key without account.age", "equals in depth are apart"),
    ),
    ("order", "_rank"): (
        Equivalent("version = self._version", "+ -> -", "any number but the last would do"),
        Equivalent("version = self._version", "1 -> 2", "any number but the last would do"),
        Equivalent("version = self._version", "0 -> 1", "any number but the last would do"),
        Equivalent("version = self._version", "0 -> -1", "any number but the last would do"),
    ),
    ("order", "_next_head"): (
        Equivalent("members[0].standing", "0 -> -1", "the workers of a unit change together"),
    ),
    ("quotas", "cap_in_the_way"): (
        Equivalent("< UNLIMITED", "< -> <=", "nothing is more than unlimited"),
    ),
    ("room", "devices_on"): (
        Equivalent("if len(found) > kind.devices", "> -> >=", "all are taken, in any order"),
    ),
    ("room", "device_slots"): (
        Equivalent("if kind.devices > 1", "> -> >=", "for one device each the loop ends at once"),
        Equivalent("if kind.devices > 1", "1 -> 0", "for one device each the loop ends at once"),
    ),
}
