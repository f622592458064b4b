"""The same weights at any number of ranks: I4, I5 and I7 of the elastic design, by real ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ranks import run_ranks

pytestmark = pytest.mark.torch


def max_distance(actual, expected):
    """Return the largest difference between two sets of weights."""
    assert actual.keys() == expected.keys()
    return max(float(np.abs(actual[name] - expected[name]).max()) for name in actual)


@pytest.fixture(scope="module")
def reference_weights():
    """Return the weights of the training without the library."""
    from elastic_trainings import Training, train_by_hand

    return train_by_hand(Training())


@pytest.mark.parametrize("ranks", [1, pytest.param(3, marks=pytest.mark.tier("test"))])
def test_ranks_train_the_same_weights_as_a_single_device(ranks, tmp_path, reference_weights):
    from elastic_trainings import Training, train_elastically

    rank_weights = run_ranks(train_elastically, ranks, tmp_path / "store", Training())

    assert all(max_distance(other, rank_weights[0]) == 0 for other in rank_weights)
    assert max_distance(rank_weights[0], reference_weights) < 1e-6


def test_job_resumes_in_mid_epoch_exactly_with_changed_ranks(tmp_path, reference_weights):
    from elastic_trainings import UPDATES, Training, train_elastically

    state, rank_weights = str(tmp_path / "state"), []
    for ranks, until in [(1, 3), (3, 7), (2, 11), (4, UPDATES)]:  # stops after update `until`
        training = Training(state=state, until=until)
        rank_weights = run_ranks(train_elastically, ranks, tmp_path / f"store-{until}", training)

    assert max_distance(rank_weights[0], reference_weights) < 1e-6


def test_torch_ranks_that_swap_numbers_and_leave_train_the_same_weights(
    tmp_path, reference_weights
):
    from elastic_trainings import Training, train_swapped_ranks

    first, second = run_ranks(
        train_swapped_ranks, 2, tmp_path / "a", Training(), str(tmp_path / "b")
    )

    assert first is None  # the former rank 0 is now rank 1
    assert max_distance(second, reference_weights) < 1e-6
