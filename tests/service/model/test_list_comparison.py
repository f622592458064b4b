"""Items added, changed and removed between two lists that are mostly equal."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.model.changes import compared


@dataclass(frozen=True, eq=False)
class Item:
    name: int
    version: int = 0


def is_same(first: Item, second: Item) -> bool:
    return first.name == second.name


@given(st.lists(st.sampled_from(["stays", "goes", "changes"]), max_size=30), st.integers(0, 4))
def test_list_comparison_splits_items_into_removed_changed_and_added(
    fates: list[str], new_count: int
) -> None:
    """Each item of the first list has a fate; new items, named from 100 on, follow at the end."""
    before = [Item(name) for name in range(len(fates))]
    after = [
        Item(item.name, version=1) if fate == "changes" else item
        for item, fate in zip(before, fates, strict=True)
        if fate != "goes"
    ]
    new = [Item(100 + n) for n in range(new_count)]

    comparison = compared(before, [*after, *new], is_same)

    assert [before[n].name for n in comparison.removed] == [
        n for n, fate in enumerate(fates) if fate == "goes"
    ]
    assert [
        (before[old].name, after[new_index].version) for old, new_index in comparison.changed
    ] == [(n, 1) for n, fate in enumerate(fates) if fate == "changes"]
    assert [*after, *new][comparison.added_from :] == new
    assert comparison.changed_or_added([*after, *new]) == [
        item for item in [*after, *new] if item not in before
    ]


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_list_comparison_reports_moved_items_as_removed_and_added(
    first: list[int], second: list[int]
) -> None:
    before, after = [Item(n) for n in first], [Item(n) for n in second]

    comparison = compared(before, after, is_same)

    remaining = {item.name for n, item in enumerate(before) if n not in comparison.removed}
    changed = {before[i].name: after[j].name for i, j in comparison.changed}
    assert all(old == new for old, new in changed.items())
    assert remaining == changed.keys()
    assert {item.name for item in after} == changed.keys() | {
        item.name for item in after[comparison.added_from :]
    }
