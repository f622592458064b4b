"""The same bits at any number of ranks, with dropout and BatchNorm: I6 of the elastic design."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranks import run_ranks

pytestmark = pytest.mark.torch


def are_equal(actual, expected):
    """Return True if all weights and buffers have the same bits."""
    assert actual.keys() == expected.keys()
    return all(np.array_equal(actual[name], expected[name]) for name in actual)


@pytest.fixture(scope="module")
def training():
    from elastic_trainings import Training

    return Training(dropout=0.3, batch_norm=True, bitwise=True)


@pytest.fixture(scope="module")
def single_rank_weights(training, tmp_path_factory):
    """Return weights and buffers after the training of one rank."""
    from elastic_trainings import train_elastically

    return run_ranks(train_elastically, 1, tmp_path_factory.mktemp("alone") / "store", training)[0]


def test_weights_of_three_ranks_equal_a_single_rank_bitwise(
    tmp_path, training, single_rank_weights
):
    from elastic_trainings import train_elastically

    rank_weights = run_ranks(train_elastically, 3, tmp_path / "store", training)

    assert all(are_equal(weights, single_rank_weights) for weights in rank_weights)


def test_training_resumed_with_changed_ranks_is_bitwise_equal(
    tmp_path, training, single_rank_weights
):
    from dataclasses import replace

    from elastic_trainings import UPDATES, train_elastically

    state, rank_weights = str(tmp_path / "state"), []
    for ranks, until in [(1, 3), (3, 7), (2, 11), (4, UPDATES)]:  # stops after update `until`
        partial_training = replace(training, state=state, until=until)
        rank_weights = run_ranks(
            train_elastically, ranks, tmp_path / f"store-{until}", partial_training
        )

    assert are_equal(rank_weights[0], single_rank_weights)


def test_weights_of_ranks_that_swap_numbers_and_leave_are_bitwise_equal(
    tmp_path, training, single_rank_weights
):
    from elastic_trainings import train_swapped_ranks

    first, second = run_ranks(train_swapped_ranks, 2, tmp_path / "a", training, str(tmp_path / "b"))

    assert first is None  # the former rank 0 has left
    assert are_equal(second, single_rank_weights)


@given(st.integers(1, 70), st.data())
def test_gradient_sum_tree_is_the_same_for_any_split_of_the_leaves(leaves, data):
    from runai.elastic.torch.virtual_workers import SumNode, fold, roots

    def push_all(pushes):
        def add(left: Any, right: Any) -> None:
            left.append([left.pop(), *right])

        sums = fold(add)
        for node, value in pushes:
            sums.push(node, value)
        return sums

    cuts = data.draw(st.lists(st.integers(0, leaves), max_size=5))
    ends = [0, *sorted(cuts), leaves]
    sequential_sum = push_all((SumNode(0, leaf), [leaf]) for leaf in range(leaves)).total()
    pushes = []
    for start, stop in pairwise(ends):
        part = push_all((SumNode(0, leaf), [leaf]) for leaf in range(start, stop)).sums
        assert [node for node, _ in part] == roots(start, stop)
        pushes += part

    assert push_all(pushes).total() == sequential_sum


@pytest.mark.parametrize(
    ("global_batch", "gpu_batch", "workers"),
    [
        pytest.param(256, 64, 8, id="eight-gpu-machine"),
        pytest.param(256, 8, 32, id="small-devices"),
        pytest.param(100, 9, 16, id="rounded-up-to-a-power-of-two"),
        pytest.param(3, 64, 4, id="few-samples"),
        pytest.param(1, 1, 1, id="one-sample"),
    ],
)
def test_default_virtual_workers_depend_on_the_batch_alone(global_batch, gpu_batch, workers):
    from runai.elastic.torch.virtual_workers import default_workers

    assert default_workers(global_batch, gpu_batch) == workers


def test_virtual_workers_that_exceed_the_gpu_batch_are_refused():
    from runai.elastic.torch.virtual_workers import enable_bitwise

    with pytest.raises(ValueError, match="does not hold: it takes 4"):
        enable_bitwise(256, 64, 3)
