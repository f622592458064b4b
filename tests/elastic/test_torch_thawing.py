"""Layers thawed or frozen during training: the same weights at any number of ranks."""

from __future__ import annotations

import signal
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from ranks import run_ranks
from runai.hub_service.wire.elastic_messages import Reason

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

IN_BOTH_MODES = pytest.mark.parametrize("bitwise", [False, True], ids=["exact", "bitwise"])
CHANGES = pytest.mark.parametrize(
    ("change", "by_hook"),
    [
        pytest.param("thaw", False, id="thawed"),
        pytest.param("thaw", True, id="thawed-after-an-update"),
        pytest.param("freeze", False, id="frozen"),
        pytest.param("group", False, id="added-to-the-optimizer"),
    ],
)


def max_distance(actual, expected):
    """Return the largest difference between two sets of weights."""
    assert actual.keys() == expected.keys()
    return max(float(np.abs(actual[name] - expected[name]).max()) for name in actual)


def training_of(change, *, by_hook=False, bitwise=False):
    from elastic_trainings import Training

    noisy = {"dropout": 0.3, "batch_norm": True} if bitwise else {"double": True}
    return Training(change=change, by_hook=by_hook, bitwise=bitwise, **noisy)


@pytest.fixture(scope="module")
def single_device_weights(tmp_path_factory):
    """Return the weights after training on one device: by hand, or in slices."""
    from elastic_trainings import train_by_hand, train_elastically

    @cache
    def weights(training):
        if not training.bitwise:
            return train_by_hand(training)
        return run_ranks(
            train_elastically, 1, tmp_path_factory.mktemp("alone") / "store", training
        )[0]

    return weights


@pytest.fixture
def assert_same_weights(single_device_weights):
    """Return a check that all ranks have the weights of one device."""

    def check(rank_weights, training):
        assert [max_distance(other, rank_weights[0]) for other in rank_weights] == [0] * len(
            rank_weights
        )
        assert max_distance(rank_weights[0], single_device_weights(training)) <= (
            0 if training.bitwise else 1e-14
        )

    return check


# In slices, one rank is the reference for all other numbers of ranks.
@pytest.mark.parametrize(
    ("bitwise", "ranks"),
    [
        pytest.param(False, 1, id="exact-1"),
        pytest.param(False, 3, id="exact-3"),
        pytest.param(True, 3, id="bitwise-3"),
    ],
)
@CHANGES
def test_ranks_train_a_thawed_or_frozen_layer_like_a_single_device(
    bitwise, ranks, change, by_hook, tmp_path, assert_same_weights
):
    from elastic_trainings import train_elastically

    training = training_of(change, by_hook=by_hook, bitwise=bitwise)

    assert_same_weights(run_ranks(train_elastically, ranks, tmp_path / "store", training), training)


LATER_IN_BOTH_MODES = pytest.mark.parametrize(
    ("bitwise", "change"),
    [
        pytest.param(False, "thaw", id="exact-thaw"),
        pytest.param(False, "freeze", id="exact-freeze"),
        pytest.param(True, "group", id="bitwise-group"),
    ],
)


@LATER_IN_BOTH_MODES
def test_thawed_or_frozen_layer_trains_exactly_in_resumed_jobs(
    change, bitwise, tmp_path, assert_same_weights
):
    from elastic_trainings import UPDATES, train_elastically

    training, state = training_of(change, bitwise=bitwise), str(tmp_path / "state")
    rank_weights: list[Any] = []
    for ranks, until in [(1, 3), (3, 6), (2, 8), (3, UPDATES)]:  # stops after update `until`
        part = replace(training, state=state, until=until)
        rank_weights = run_ranks(train_elastically, ranks, tmp_path / f"store-{until}", part)

    assert_same_weights(rank_weights, training)


@IN_BOTH_MODES
def test_rank_ahead_in_its_script_waits_before_it_trains_a_thawed_layer(
    bitwise, tmp_path, assert_same_weights
):
    from elastic_thawing import train_rank_0_ahead

    training = training_of("thaw", bitwise=bitwise)

    assert_same_weights(
        run_ranks(train_rank_0_ahead, 2, tmp_path / "a", training, str(tmp_path / "b")), training
    )


@LATER_IN_BOTH_MODES
def test_workers_that_join_later_train_a_thawed_or_frozen_layer_exactly(
    change, bitwise, tmp_path, single_device_weights
):
    from elastic_cluster import Cluster

    training = training_of(change, bitwise=bitwise)
    options = {k: getattr(training, k) for k in ("dropout", "batch_norm", "double")}
    cluster = Cluster(tmp_path, 3, change=change, bitwise=bitwise, **options)
    try:
        cluster.allow_updates(0)
        cluster.start("a", "b", "c")
        cluster.wait_until_ready("a", "b", "c")
        cluster.set_target("a", "b")
        cluster.wait_until_training("a", "b")
        cluster.allow_updates(8)
        cluster.wait_at_update(8, "a", "b")
        cluster.set_target("b", reason=Reason.RECLAIM)
        cluster.allow_updates(10)
        assert cluster.exit_code("a") == 128 + signal.SIGTERM
        cluster.wait_until_training("b")
        cluster.wait_at_update(10, "b")
        cluster.set_target("b", "c")
        cluster.allow_updates(12)
        cluster.wait_until_training("b", "c")
        cluster.allow_updates(15)
        assert [cluster.exit_code(name) for name in "bc"] == [0, 0]
    finally:
        cluster.close()

    with np.load(tmp_path / "weights.npz") as trained:
        assert max_distance(dict(trained), single_device_weights(training)) <= (
            0 if bitwise else 1e-14
        )


@pytest.mark.parametrize(
    ("bitwise", "ranks"),
    [pytest.param(True, 1, id="bitwise-1"), pytest.param(False, 2, id="exact-2")],
)
@pytest.mark.parametrize(
    ("change", "moment", "message"),
    [
        pytest.param("freeze", "first-backward", "`0.weight` was frozen after", id="mid-pass"),
        pytest.param("freeze", "second-forward", "`0.weight` was frozen after", id="mid-update"),
        pytest.param("add", "first-forward", "`2.weight` was added to", id="added"),
        pytest.param("take-out", "first-forward", "`0.weight` was taken out of", id="removed"),
        pytest.param("replace", "first-forward", "`0.weight` was taken out of", id="replaced"),
        pytest.param("strange", "first-forward", "shape (3, 2) that is not the", id="foreign"),
        pytest.param("in-place", "first-forward", "", id="in-place"),
        pytest.param(
            "freeze", "second-backward", "`0.weight` was frozen after", id="mid-later-pass"
        ),
    ],
)
def test_layer_change_that_ranks_cannot_share_is_refused_by_name(
    bitwise, ranks, change, moment, message, tmp_path
):
    from elastic_thawing import change_layer

    for error in run_ranks(change_layer, ranks, tmp_path / "s", change, moment, bitwise):
        assert message in error
        assert bool(message) == bool(error)


@IN_BOTH_MODES
def test_ranks_that_disagree_on_trainable_parameters_raise_an_error(bitwise, tmp_path):
    from elastic_thawing import change_layer

    messages = run_ranks(
        change_layer, 2, tmp_path / "s", "freeze-on-rank-1", "first-forward", bitwise
    )

    for error in messages:
        assert error.startswith("ValueError: Ranks disagree on whether `0.weight` is trainable")


@IN_BOTH_MODES
def test_model_frozen_during_an_input_gradient_is_still_trained(bitwise, tmp_path):
    from elastic_thawing import train_with_input_gradients

    calm, *_ = run_ranks(train_with_input_gradients, 2, tmp_path / "calm", bitwise, False)

    for weights in run_ranks(train_with_input_gradients, 2, tmp_path / "attacked", bitwise, True):
        assert max_distance(weights, calm) == 0
