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


def equal(found, expected):
    """Return True if all weights and buffers have the same bits."""
    assert found.keys() == expected.keys()
    return all(np.array_equal(found[name], expected[name]) for name in found)


@pytest.fixture(scope="module")
def training():
    from elastic_trainings import Training

    return Training(dropout=0.3, batch_norm=True, bitwise=True)


@pytest.fixture(scope="module")
def alone(training, tmp_path_factory):
    """Return weights and buffers after the training of one rank."""
    from elastic_trainings import elastically

    return run_ranks(elastically, 1, tmp_path_factory.mktemp("alone") / "store", training)[0]


def test_all_ranks_have_the_bits_of_one(tmp_path, training, alone):
    from elastic_trainings import elastically

    found = run_ranks(elastically, 3, tmp_path / "store", training)

    assert all(equal(weights, alone) for weights in found)


def test_the_bits_survive_other_numbers_of_ranks_in_mid_epoch(tmp_path, training, alone):
    from dataclasses import replace

    from elastic_trainings import UPDATES, elastically

    state, found = str(tmp_path / "state"), []
    for ranks, until in [(1, 3), (3, 7), (2, 11), (4, UPDATES)]:
        some = replace(training, state=state, until=until)
        found = run_ranks(elastically, ranks, tmp_path / f"store-{until}", some)

    assert equal(found[0], alone)


def test_the_bits_survive_ranks_that_change_places_and_leave(tmp_path, training, alone):
    from elastic_trainings import replanned

    first, second = run_ranks(replanned, 2, tmp_path / "a", training, str(tmp_path / "b"))

    assert first is None
    assert equal(second, alone)


@given(st.integers(1, 70), st.data())
def test_sum_is_the_same_tree_for_any_split_of_the_leaves(leaves, data):
    from runai.elastic.torch.virtual import SumNode, fold, roots

    def added(pushes):
        def add(left: Any, right: Any) -> None:
            left.append([left.pop(), *right])

        sums = fold(add)
        for node, value in pushes:
            sums.push(node, value)
        return sums

    cuts = data.draw(st.lists(st.integers(0, leaves), max_size=5))
    ends = [0, *sorted(cuts), leaves]
    by_one = added((SumNode(0, leaf), [leaf]) for leaf in range(leaves)).total()
    pushes = []
    for start, stop in pairwise(ends):
        part = added((SumNode(0, leaf), [leaf]) for leaf in range(start, stop)).sums
        assert [node for node, _ in part] == roots(start, stop)
        pushes += part

    assert added(pushes).total() == by_one


@pytest.mark.parametrize(
    ("global_batch", "gpu_batch", "workers"),
    [
        pytest.param(256, 64, 8, id="a-machine-of-eight"),
        pytest.param(256, 8, 32, id="small-devices"),
        pytest.param(100, 9, 16, id="to-the-next-power-of-two"),
        pytest.param(3, 64, 4, id="few-samples"),
        pytest.param(1, 1, 1, id="one-sample"),
    ],
)
def test_how_many_slices_there_are_depends_on_the_batch_alone(global_batch, gpu_batch, workers):
    from runai.elastic.torch.virtual import default_workers

    assert default_workers(global_batch, gpu_batch) == workers


def test_slices_that_no_device_holds_are_refused():
    from runai.elastic.torch.virtual import enable_bitwise

    with pytest.raises(ValueError, match="does not hold: it takes 4"):
        enable_bitwise(256, 64, 3)
