"""Mutants that nobody can notice, each with the reason, and those that only nobody does notice.

Knows them by module, function, a part of the changed line and what is changed, so that a line may
move. `mutants` leaves out of what it counts those whose change makes no difference, and says how
many they are; of those that survive it says why.
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
        Equivalent("touched.clear()", "*", "who is ranked once more has the same rank"),
        Equivalent("account.age)", "sort key without account.age", "equals in depth are apart"),
    ),
    ("order", "_next_head"): (
        Equivalent("members[0].standing", "0 -> -1", "the workers of a unit change together"),
    ),
    ("room", "take"): (
        Equivalent("if was > 0 and not was_idle", "> -> >=", "nobody shares what is all taken"),
        Equivalent("if was > 0 and not was_idle", "0 -> -1", "nobody shares what is all taken"),
        Equivalent("if now > 0 and not is_idle", "> -> >=", "nobody shares what is all taken"),
        Equivalent("if now > 0 and not is_idle", "0 -> -1", "nobody shares what is all taken"),
    ),
    ("room", "free_on"): (
        Equivalent("if milli > 0", "> -> >=", "nothing adds nothing"),
        Equivalent("if milli > 0", "0 -> -1", "nothing adds nothing"),
    ),
    ("lanes", "__init__"): (
        Equivalent("turn += 2 *", "2 -> 3", "any weight above that of who runs orders alike"),
    ),
    ("lanes", "_add"): (
        Equivalent("units[-1].key < unit.key", "< -> <=", "no two units have one key"),
    ),
    ("placement", "_place_gang"): (
        Equivalent("_domains(state, members[0])", "*", "they are one workload's"),
    ),
    ("placement", "place"): (
        Equivalent("members[0].item.sizes", "0 -> -1", "the workers of a unit are one workload's"),
    ),
    ("fragmentation", "usable"): (
        Equivalent("self.most_cpu <= cpu", "<= -> <", "the slow way says the same"),
        Equivalent("self.most_memory <= memory", "<= -> <", "the slow way says the same"),
        Equivalent("<= reach * cpu", "<= -> <", "the slow way says the same"),
        Equivalent("<= reach * memory", "<= -> <", "the slow way says the same"),
        Equivalent("<= reach * cpu", "* -> //", "the slow way says the same"),
        Equivalent("<= reach * memory", "* -> //", "the slow way says the same"),
    ),
    ("search", "_may_keep"): (Equivalent("default=-1", "*", "with nobody taken no search is on"),),
    ("holding", "__init__"): (
        Equivalent("self._nodes = sorted", "order reversed", "they are looked up by name"),
    ),
    ("holding", "_by_end"): (
        Equivalent(
            "if held.end else 0", "0 -> -1", "those without an end compare among themselves"
        ),
        Equivalent("if held.end else 0", "0 -> 1", "those without an end compare among themselves"),
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
        Equivalent('worker.node or "", -1', "1 -> 2", "any number below 0 is no node"),
        Equivalent("if index >= 0 else 0", "0 -> -1", "no device has a number below 0"),
    ),
    ("victims", "__init__"): (
        Equivalent("len(item.members) == 1", "1 -> 0", "of one, all that are active are that one"),
        Equivalent("0 if safe is None", "0 -> 1", "those that never told compare alike"),
        Equivalent("0 if safe is None", "0 -> -1", "those that never told compare alike"),
    ),
    ("backfill", "_when_devices_are_free"): (
        Equivalent("device), 0), ends[item])", "0 -> 1", "no end is as early as that"),
        Equivalent("device), 0), ends[item])", "0 -> -1", "no end is as early as that"),
    ),
    ("victims", "add"): (
        Equivalent("listed[-1].key < victim.key", "< -> <=", "no two victims have one key"),
    ),
    ("backfill", "_soonest"): (
        Equivalent("sorted(taken)", "order reversed", "all of them are held, in any order"),
    ),
    ("part_choice", "try_other_parts"): (
        Equivalent("pending_units(item)[:1]", "any -> all", "of one, any is all"),
    ),
    ("reasons", "_of_no_such_node"): (
        Equivalent("n.device_memory_mib for n", "0 -> 1", "without nodes there is no device"),
    ),
    ("frag_room", "_part"): (
        Equivalent("max(0, ", "0 -> -1", "nobody fits there: before and after it weighs the same"),
    ),
    ("reasons", "queues"): (
        Equivalent("first = lane.units[0]", "0 -> -1", "all units of a lane are of one sort"),
    ),
    ("fragmentation", "fragmentation"): (
        Equivalent("max(free.devices, default=0)", "0 -> -1", "without devices nobody fits"),
        Equivalent("max(free.devices, default=0)", "0 -> 1", "without devices nobody fits"),
        Equivalent("> _KEPT", "*", "how much is kept is a matter of memory"),
        Equivalent("self._known.clear()", "*", "how much is kept is a matter of memory"),
        Equivalent("break", "break -> continue", "those after it ask for more of each device"),
    ),
    ("frag_room", "first"): (
        Equivalent("> _SLACK * (len(ranks)", "*", "how much is kept is a matter of memory"),
    ),
    ("frag_room", "take"): (
        Equivalent("if booking.node >= 0", "0 -> -1", "nobody looks for a place on no node"),
    ),
    ("frag_room", "find"): (
        Equivalent("+ 256)", "256 -> 257", "how much is kept is a matter of memory"),
        Equivalent("+ 256)", "256 -> 255", "how much is kept is a matter of memory"),
        Equivalent("+ 256)", "> -> >=", "how much is kept is a matter of memory"),
        Equivalent("self._forget()", "*", "how much is kept is a matter of memory"),
    ),
    ("room", "__init__"): (
        Equivalent("max(self.idle, default=0)", "0 -> -1", "without nodes nothing is looked up"),
        Equivalent("max(self.idle, default=0) + 1)", "1 -> 2", "an empty bucket more is passed by"),
        Equivalent("max(self.idle, default=0)", "0 -> 1", "without nodes nothing is looked up"),
    ),
    ("state", "has_stale_kinds"): (
        Equivalent("_KINDS_KEPT + 4", "*", "how much is kept is a matter of memory"),
    ),
    ("fragmentation", "__init__"): (
        Equivalent("self.most_cpu = 0", "*", "then the slow way says the same"),
        Equivalent("self.most_memory = 0", "*", "then the slow way says the same"),
    ),
    ("vacate", "cheapest_first"): (
        Equivalent("least = 0 if starts", "0 -> -1", "nothing costs less than no GPU"),
    ),
    ("search", "_minimise"): (
        Equivalent(
            "judged[_judged(taken.giver)] += 1", "1 -> 2", "who is needed counts, once or twice"
        ),
    ),
    ("givers", "_rivals_at"): (
        Equivalent("if (among is None", "and -> or", "asked again before anybody is taken"),
    ),
    ("tree", "__init__"): (
        Equivalent("self.quota = 0", "*", "else asked of what is held for somebody: none can go"),
        Equivalent("self.build_quota = 0", "*", "set when the tree is resolved; else not asked"),
        Equivalent("self.weight = 0", "*", "set when the tree is resolved; else not asked"),
    ),
    ("resize", "repays"): (
        Equivalent("max(0, known - has_run)", "0 -> 1", "no cost is repaid in one second"),
        Equivalent("max(0, known - has_run)", "0 -> -1", "no cost is repaid in no time"),
    ),
    ("reclaim", "_ways"): (
        Equivalent("protected(account)[-1:]", "1 -> 2", "nobody's priority is under the last's"),
        Equivalent("protected(account)[-1:]", "1 -> 0", "nobody's priority is under the last's"),
    ),
    ("reclaim", "_node_sets"): (
        Equivalent("unit.members[0].kind", "0 -> -1", "all are of one kind, or it looks nowhere"),
    ),
    ("reclaim", "_first_to_go"): (
        Equivalent("return [*victims", "1 -> 2", "nobody's priority is under the last's"),
        Equivalent("return [*victims", "1 -> 0", "nobody's priority is under the last's"),
    ),
    ("reclaim", "_serve"): (
        Equivalent(
            "return False  # only preemptible work",
            "*",
            "nobody was placed and nothing looked at: only the rest of its lane asks as well",
        ),
    ),
    ("bounds", "is_anybody_over"): (
        Equivalent("self._bound(root, 1, within)", "1 -> 2", "asked is whether it is more than 0"),
    ),
}


SURVIVING: dict[tuple[str, str], tuple[Equivalent, ...]] = {
    ("allocate", "_try_to_move"): (
        Equivalent(
            "return False", "False -> True", "needs two elastic gangs stopped, one whole, and room"
        ),
        Equivalent("return True", "True -> False", "only asks the rest of the lane as well"),
    ),
    ("consolidate", "_serve"): (
        Equivalent("forget(self._touched)", "*", "what is remembered is a little out of date"),
    ),
    ("consolidate", "_place_all"): (
        Equivalent("self._touch(", "*", "what is remembered is a little out of date"),
    ),
    ("consolidate", "_touch"): (
        Equivalent("self._touched.update", "*", "what is remembered is a little out of date"),
    ),
}
"""Make a difference that no test looks for: what it would take."""
