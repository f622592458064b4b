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
    ("room", "take"): (
        Equivalent("if was > 0 and not was_idle", "> -> >=", "nobody shares what is all taken"),
    ),
    ("lanes", "_add"): (
        Equivalent("units[-1].key < unit.key", "< -> <=", "no two units have one key"),
    ),
    ("placement", "place"): (
        Equivalent("members[0].item.sizes", "0 -> -1", "the workers of a unit are one workload's"),
    ),
    ("frag_room", "__init__"): (Equivalent("self.seen = 0", "*", "it is set before it is read"),),
    ("fragmentation", "usable"): (
        Equivalent("self.most_cpu <= cpu", "<= -> <", "the slow way says the same"),
        Equivalent("self.most_memory <= memory", "<= -> <", "the slow way says the same"),
        Equivalent("<= reach * cpu", "* -> //", "the slow way says the same"),
        Equivalent("<= reach * memory", "* -> //", "the slow way says the same"),
    ),
    ("forecast", "start_of"): (
        Equivalent("if frees else 0", "if not frees", "no plan frees something for ever"),
    ),
    ("search", "_took_what_was_freed"): (
        Equivalent("len(freed) == 1", "1 -> 0", "what is not known to be full is looked at"),
    ),
    ("search", "_may_keep"): (
        Equivalent("default=-1", "minus left out", "with nobody taken no search is on"),
    ),
    ("holding", "_by_end"): (
        Equivalent(
            "if held.end else 0", "0 -> -1", "those without an end compare among themselves"
        ),
        Equivalent("if held.end else 0", "0 -> 1", "those without an end compare among themselves"),
    ),
    ("snapshot_wire", "_check_workers"): (
        Equivalent("worker.node, d + 1", "1 -> 2", "any number above it would do"),
    ),
    ("fields", "__init__"): (
        Equivalent("default_factory", "*", "runs at import, before it can be changed"),
    ),
    ("items", "__init__"): (
        Equivalent("self.holds_later", "*", "runs at import, before it can be changed"),
    ),
    ("state", "__init__"): (
        Equivalent(
            "sorted(snapshot.workloads", "*", "an index adds in any order, and decides alike"
        ),
    ),
    ("state", "_booking_in_snapshot"): (
        Equivalent("if index >= 0 else 0", "0 -> -1", "no device has a number below 0"),
    ),
    ("victims", "add"): (
        Equivalent("listed[-1].key < victim.key", "< -> <=", "no two victims have one key"),
    ),
    ("bounds", "is_anybody_over"): (
        Equivalent("self._bound(root, 1, within)", "1 -> 2", "asked is whether it is more than 0"),
    ),
}
