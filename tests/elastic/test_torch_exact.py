"""The same weights at any number of ranks: I4, I5 and I7 of the elastic design, by real ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ranks import run_ranks

pytestmark = pytest.mark.torch


def furthest(actual, expected):
    """Return the largest difference between two sets of weights."""
    assert actual.keys() == expected.keys()
    return max(float(np.abs(actual[name] - expected[name]).max()) for name in actual)


@pytest.fixture(scope="module")
def by_hand():
    """Return the weights of the training without the library."""
    from elastic_trainings import Training, by_hand

    return by_hand(Training())


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.tier("test"))])
def test_ranks_train_the_same_weights_as_a_single_device(ranks, tmp_path, by_hand):
    from elastic_trainings import Training, elastically

    rank_weights = run_ranks(elastically, ranks, tmp_path / "store", Training())

    assert all(furthest(other, rank_weights[0]) == 0 for other in rank_weights)
    assert furthest(rank_weights[0], by_hand) < 1e-6


def test_job_resumes_in_mid_epoch_exactly_with_changed_ranks(tmp_path, by_hand):
    from elastic_trainings import UPDATES, Training, elastically

    state, rank_weights = str(tmp_path / "state"), []
    for ranks, until in [(1, 3), (3, 7), (2, 11), (4, UPDATES)]:
        training = Training(state=state, until=until)
        rank_weights = run_ranks(elastically, ranks, tmp_path / f"store-{until}", training)

    assert furthest(rank_weights[0], by_hand) < 1e-6


def test_torch_ranks_that_swap_numbers_and_leave_train_the_same_weights(tmp_path, by_hand):
    from elastic_trainings import Training, replanned

    first, second = run_ranks(replanned, 2, tmp_path / "a", Training(), str(tmp_path / "b"))

    assert first is None  # the former rank 0 is now rank 1
    assert furthest(second, by_hand) < 1e-6
