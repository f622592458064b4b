"""The launcher's decision on the next group of training workers, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.elastic.resize import LiveWorker, plan_ranks


def _workers(text):
    """Parse workers from text: in `a b? c-` a is ready, b still starting, c terminating."""
    return [
        LiveWorker(name.rstrip("?-"), ready="?" not in name, terminating="-" in name)
        for name in text.split()
    ]


@pytest.mark.parametrize(
    ("ranks", "workers", "desired", "min_workers", "next_ranks"),
    [
        # Of the workers, a? is still starting and a- is terminating.
        pytest.param("", "a? b?", 2, 1, None, id="no-worker-ready"),
        pytest.param("", "a b?", 2, 1, None, id="first-start-before-all-are-ready"),
        pytest.param("", "a b", 2, 1, "a b", id="first-start"),
        pytest.param("", "a", 2, 2, None, id="first-start-below-the-minimum"),
        pytest.param("a b", "a b", 2, 1, None, id="no-change"),
        pytest.param("a", "a b", 2, 1, "a b", id="joiner-ready"),
        pytest.param("a", "a b c?", 3, 1, None, id="second-joiner-not-ready"),
        pytest.param("a b c", "a b c", 1, 1, "a", id="shrink-drops-the-last-ranks"),
        pytest.param("a b", "a b c?", 1, 1, "a", id="shrink-while-a-joiner-starts"),
        pytest.param("a b", "b", 2, 1, "b", id="rank-0-lost"),
        pytest.param("a b", "b c?", 2, 1, "b", id="rank-lost-while-a-joiner-starts"),
        pytest.param("a b", "b c?", 2, 2, None, id="rank-lost-below-the-minimum"),
        pytest.param("a b", "b c", 2, 2, "b c", id="joiner-replaces-a-lost-rank"),
        pytest.param("a", "a- b", 1, 1, None, id="only-rank-still-saves"),
        pytest.param("a", "b", 1, 1, "b", id="only-rank-replaced"),
        pytest.param("a b", "c d?", 2, 1, None, id="all-ranks-lost"),
        pytest.param("a b", "a- b c", 2, 1, "b c", id="rank-terminates-and-joiner-ready"),
    ],
)
def test_plan_ranks_returns_the_next_ranks(ranks, workers, desired, min_workers, next_ranks):
    expected = None if next_ranks is None else tuple(next_ranks.split())

    assert plan_ranks(ranks.split(), _workers(workers), desired, min_workers) == expected


NAMES = st.sampled_from("abcdef")


@given(
    st.lists(NAMES, unique=True),
    st.lists(st.tuples(NAMES, st.booleans(), st.booleans()), unique_by=lambda w: w[0]),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_plan_ranks_returns_only_ready_workers_within_bounds(ranks, workers, desired, min_workers):
    views = [
        LiveWorker(name, ready or name in ranks, terminating)
        for name, ready, terminating in workers
    ]
    next_ranks = plan_ranks(ranks, views, desired, min_workers)
    if next_ranks is None:
        return
    able = {view.name for view in views if view.ready and not view.terminating}

    assert len(set(next_ranks)) == len(next_ranks)
    assert min_workers <= len(next_ranks) <= max(desired, min_workers)
    assert set(next_ranks) <= able
    assert [name for name in next_ranks if name in ranks] == [
        name for name in ranks if name in next_ranks
    ]
