"""Layers thawed or frozen during training: the same weights at any number of ranks."""

from __future__ import annotations

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
        pytest.param("group", False, id="given-to-the-optimizer"),
    ],
)


def furthest(actual, expected):
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
    from elastic_trainings import by_hand, elastically

    @cache
    def weights(training):
        if not training.bitwise:
            return by_hand(training)
        return run_ranks(elastically, 1, tmp_path_factory.mktemp("alone") / "store", training)[0]

    return weights


@pytest.fixture
def assert_same(single_device_weights):
    """Return a check that all ranks have the weights of one device."""

    def check(rank_weights, training):
        assert [furthest(other, rank_weights[0]) for other in rank_weights] == [0] * len(
            rank_weights
        )
        assert furthest(rank_weights[0], single_device_weights(training)) <= (
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
    bitwise, ranks, change, by_hook, tmp_path, assert_same
):
    from elastic_trainings import elastically

    training = training_of(change, by_hook=by_hook, bitwise=bitwise)

    assert_same(run_ranks(elastically, ranks, tmp_path / "store", training), training)


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
    change, bitwise, tmp_path, assert_same
):
    from elastic_trainings import UPDATES, elastically

    training, state = training_of(change, bitwise=bitwise), str(tmp_path / "state")
    rank_weights: list[Any] = []
    for ranks, until in [(1, 3), (3, 6), (2, 8), (3, UPDATES)]:
        part = replace(training, state=state, until=until)
        rank_weights = run_ranks(elastically, ranks, tmp_path / f"store-{until}", part)

    assert_same(rank_weights, training)


@IN_BOTH_MODES
def test_rank_ahead_in_its_script_waits_before_it_trains_a_thawed_layer(
    bitwise, tmp_path, assert_same
):
    from elastic_thawing import apart

    training = training_of("thaw", bitwise=bitwise)

    assert_same(run_ranks(apart, 2, tmp_path / "a", training, str(tmp_path / "b")), training)


@LATER_IN_BOTH_MODES
def test_workers_that_join_later_train_a_thawed_or_frozen_layer_exactly(
    change, bitwise, tmp_path, single_device_weights
):
    from elastic_cluster import Cluster

    training = training_of(change, bitwise=bitwise)
    options = {k: getattr(training, k) for k in ("dropout", "batch_norm", "double")}
    cluster = Cluster(tmp_path, 3, change=change, bitwise=bitwise, **options)
    try:
        cluster.allow(0)
        cluster.start("a", "b", "c")
        cluster.ready("a", "b", "c")
        cluster.call("a", "b")
        cluster.trains("a", "b")
        cluster.allow(8)
        cluster.holds_at(8, "a", "b")
        cluster.call("b", reason=Reason.RECLAIM)
        cluster.allow(10)
        assert cluster.code("a") == 143
        cluster.trains("b")
        cluster.holds_at(10, "b")
        cluster.call("b", "c")
        cluster.allow(12)
        cluster.trains("b", "c")
        cluster.allow(15)
        assert [cluster.code(name) for name in "bc"] == [0, 0]
    finally:
        cluster.close()

    with np.load(tmp_path / "weights.npz") as trained:
        assert furthest(dict(trained), single_device_weights(training)) <= (0 if bitwise else 1e-14)


@pytest.mark.parametrize(
    ("bitwise", "ranks"),
    [pytest.param(True, 1, id="bitwise-1"), pytest.param(False, 2, id="exact-2")],
)
@pytest.mark.parametrize(
    ("change", "when", "message"),
    [
        pytest.param("freeze", "first-backward", "`0.weight` was frozen after", id="in-a-pass"),
        pytest.param("freeze", "second-forward", "`0.weight` was frozen after", id="in-an-update"),
        pytest.param("add", "first-forward", "`2.weight` was added to", id="added"),
        pytest.param("take-out", "first-forward", "`0.weight` was taken out of", id="taken-out"),
        pytest.param("replace", "first-forward", "`0.weight` was taken out of", id="replaced"),
        pytest.param("strange", "first-forward", "shape (3, 2) that is not the", id="not-of-it"),
        pytest.param("in-place", "first-forward", "", id="in-place"),
        pytest.param("freeze", "second-backward", "`0.weight` was frozen after", id="in-a-later"),
    ],
)
def test_layer_change_that_ranks_cannot_share_is_refused_by_name(
    bitwise, ranks, change, when, message, tmp_path
):
    from elastic_thawing import changed_when

    for sentence in run_ranks(changed_when, ranks, tmp_path / "s", change, when, bitwise):
        assert message in sentence
        assert bool(message) == bool(sentence)


@IN_BOTH_MODES
def test_ranks_that_disagree_on_trainable_parameters_raise_an_error(bitwise, tmp_path):
    from elastic_thawing import changed_when

    messages = run_ranks(
        changed_when, 2, tmp_path / "s", "freeze-on-rank-1", "first-forward", bitwise
    )

    for sentence in messages:
        assert sentence.startswith("ValueError: Ranks disagree on whether `0.weight` is trainable")


@IN_BOTH_MODES
def test_model_frozen_during_an_input_gradient_is_still_trained(bitwise, tmp_path):
    from elastic_thawing import attacked

    calm, *_ = run_ranks(attacked, 2, tmp_path / "calm", bitwise, False)

    for attacked_weights in run_ranks(attacked, 2, tmp_path / "attacked", bitwise, True):
        assert furthest(attacked_weights, calm) == 0
