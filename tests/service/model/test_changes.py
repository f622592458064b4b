"""Items added, changed and removed between two lists that are mostly equal."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as some

from runai.hub_service.model.changes import compared


@dataclass(frozen=True, eq=False)
class Thing:
    name: int
    version: int = 0


def is_same(one: Thing, other: Thing) -> bool:
    return one.name == other.name


@given(
    some.lists(some.sampled_from(["stays", "goes", "changes"]), max_size=30), some.integers(0, 4)
)
def test_each_is_where_it_belongs(happens: list[str], many_new: int) -> None:
    before = [Thing(name) for name in range(len(happens))]
    after = [
        Thing(thing.name, 1) if what == "changes" else thing
        for thing, what in zip(before, happens, strict=True)
        if what != "goes"
    ]
    new = [Thing(100 + n) for n in range(many_new)]

    found = compared(before, [*after, *new], is_same)

    assert [before[n].name for n in found.removed] == [
        n for n, what in enumerate(happens) if what == "goes"
    ]
    assert [(before[was].name, after[now].version) for was, now in found.changed] == [
        (n, 1) for n, what in enumerate(happens) if what == "changes"
    ]
    assert [*after, *new][found.new :] == new
    assert found.changed_or_added([*after, *new]) == [
        thing for thing in [*after, *new] if thing not in before
    ]


@given(some.permutations(range(6)), some.permutations(range(6)))
def test_comparison_reports_moved_items_as_removed_and_added(
    first: list[int], second: list[int]
) -> None:
    before, after = [Thing(n) for n in first], [Thing(n) for n in second]

    found = compared(before, after, is_same)

    left = {thing.name for n, thing in enumerate(before) if n not in found.removed}
    changed = {before[was].name: after[now].name for was, now in found.changed}
    assert all(was == now for was, now in changed.items())
    assert left == changed.keys()
    assert {t.name for t in after} == changed.keys() | {t.name for t in after[found.new :]}
