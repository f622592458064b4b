"""Items added, changed and removed between two lists that are mostly equal."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as some

from runai.hub_service.model.changes import compared


@dataclass(frozen=True, eq=False)
class Item:
    name: int
    version: int = 0


def is_same(first: Item, second: Item) -> bool:
    return first.name == second.name


@given(
    some.lists(some.sampled_from(["stays", "goes", "changes"]), max_size=30), some.integers(0, 4)
)
def test_list_comparison_splits_items_into_removed_changed_and_added(
    happens: list[str], many_new: int
) -> None:
    before = [Item(name) for name in range(len(happens))]
    after = [
        Item(item.name, 1) if what == "changes" else item
        for item, what in zip(before, happens, strict=True)
        if what != "goes"
    ]
    new = [Item(100 + n) for n in range(many_new)]

    comparison = compared(before, [*after, *new], is_same)

    assert [before[n].name for n in comparison.removed] == [
        n for n, what in enumerate(happens) if what == "goes"
    ]
    assert [(before[was].name, after[now].version) for was, now in comparison.changed] == [
        (n, 1) for n, what in enumerate(happens) if what == "changes"
    ]
    assert [*after, *new][comparison.added_from :] == new
    assert comparison.changed_or_added([*after, *new]) == [
        item for item in [*after, *new] if item not in before
    ]


@given(some.permutations(range(6)), some.permutations(range(6)))
def test_list_comparison_reports_moved_items_as_removed_and_added(
    first: list[int], second: list[int]
) -> None:
    before, after = [Item(n) for n in first], [Item(n) for n in second]

    comparison = compared(before, after, is_same)

    left = {item.name for n, item in enumerate(before) if n not in comparison.removed}
    changed = {before[was].name: after[now].name for was, now in comparison.changed}
    assert all(was == now for was, now in changed.items())
    assert left == changed.keys()
    assert {t.name for t in after} == changed.keys() | {
        t.name for t in after[comparison.added_from :]
    }
