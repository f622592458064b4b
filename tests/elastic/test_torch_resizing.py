"""Resizing, pausing and losing workers, with real ranks on gloo (I5, I8 of the elastic design)."""

from __future__ import annotations

import signal
from functools import cache

import numpy as np
import pytest

from ranks import run_ranks
from runai.hub_service.wire.elastic_messages import Reason, WorkerPhase

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

EPOCHS = 3
UPDATES = EPOCHS * 5


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the weights of the same training on one rank: by hand, or in slices."""
    from elastic_trainings import Training, by_hand, elastically

    @cache
    def weights(mode):
        if mode == "exact":
            return by_hand(Training())
        store = tmp_path_factory.mktemp("alone") / "store"
        return run_ranks(elastically, 1, store, Training(**_training(mode)))[0]

    return weights


def _training(mode):
    return {"bitwise": True, "dropout": 0.3, "batch_norm": True} if mode == "bitwise" else {}


@pytest.fixture
def mode():
    """Return the default mode, for tests without a parameter."""
    return "exact"


@pytest.fixture
def cluster(tmp_path, mode):
    from elastic_cluster import Cluster

    cluster = Cluster(tmp_path, EPOCHS, **_training(mode))
    cluster.allow(0)
    yield cluster
    cluster.close()


@pytest.fixture
def assert_same(cluster, mode, undisturbed):
    """Return a check that every sample counted once, and of the final weights."""
    from training_records import expected_history, read_records, reconcile

    def check():
        assert reconcile(read_records(cluster.directory)) == expected_history(EPOCHS)
        calm = undisturbed(mode)
        with np.load(cluster.directory / "weights.npz") as trained:
            if mode == "bitwise":
                assert all(np.array_equal(trained[name], calm[name]) for name in calm)
            else:
                assert max(abs(trained[name] - calm[name]).max() for name in calm) < 1e-6

    return check


def _finish(cluster, *names):
    cluster.allow(UPDATES)
    assert [cluster.code(name) for name in names] == [0] * len(names)


@pytest.mark.parametrize("mode", ["exact", "bitwise"])
def test_training_resized_within_epochs_uses_each_sample_once(cluster, assert_same):
    cluster.start("a", "b", "c", "d")
    cluster.ready("a", "b", "c", "d")
    cluster.call("a")
    cluster.trains("a")
    cluster.allow(2)
    cluster.holds_at(2, "a")
    cluster.call("a", "b", "c")
    cluster.allow(5)
    cluster.trains("a", "b", "c")
    cluster.holds_at(5, "a", "b", "c")
    cluster.call("a", "c", reason=Reason.RECLAIM)
    cluster.allow(8)
    assert cluster.code("b") == 143
    cluster.trains("a", "c")
    cluster.start("b")
    cluster.ready("b")
    cluster.call("a", "c", "d", "b")
    cluster.allow(11)
    cluster.trains("a", "c", "d", "b")
    _finish(cluster, "a", "b", "c", "d")

    assert_same()


def test_rank_0_leaves_and_rejoins_without_a_checkpoint(cluster, assert_same):
    cluster.start("a", "b")
    cluster.ready("a", "b")
    cluster.call("a")
    cluster.trains("a")
    cluster.allow(2)
    cluster.holds_at(2, "a")
    cluster.call("a", "b")
    cluster.allow(5)
    cluster.trains("a", "b")
    cluster.holds_at(5, "a", "b")
    cluster.call("b", reason=Reason.RECLAIM)
    cluster.allow(9)
    assert cluster.code("a") == 143
    cluster.trains("b")
    cluster.start("a")
    cluster.ready("a")
    cluster.call("b", "a")
    cluster.allow(12)
    cluster.trains("a", "b")
    _finish(cluster, "a", "b")

    assert_same()
    assert not list((cluster.directory / "checkpoints").glob("*2.ckpt")), "nobody wrote on the way"


@pytest.mark.parametrize(
    ("mode", "victim"),
    [
        pytest.param("exact", "a", id="exact-rank-0"),
        pytest.param("exact", "c", id="exact-the-last"),
        pytest.param("bitwise", "b", id="bitwise-between"),
    ],
)
def test_killed_worker_costs_the_survivors_no_update(cluster, assert_same, victim):
    cluster.start("a", "b", "c")
    cluster.ready("a", "b", "c")
    cluster.call("a", "b", "c")
    cluster.trains("a", "b", "c")
    cluster.allow(1)  # DDP would rebuild its buckets, collectively, in the next forward pass
    cluster.holds_at(1, "a", "b", "c")
    cluster.send(victim, signal.SIGKILL)
    assert cluster.code(victim) == -signal.SIGKILL
    survivors = sorted({"a", "b", "c"} - {victim})
    cluster.allow(6)
    cluster.call(*survivors, reason=Reason.RECLAIM)
    cluster.trains(*survivors)
    _finish(cluster, *survivors)

    assert_same()


def test_training_loses_no_update_after_a_joining_worker_is_killed(cluster, assert_same):
    cluster.start("a", "b")
    cluster.ready("a", "b")
    cluster.call("a")
    cluster.trains("a")
    cluster.send("b", signal.SIGKILL)
    assert cluster.code("b") == -signal.SIGKILL
    cluster.call("a", "b")
    cluster.allow(3)
    cluster.call("a", reason=Reason.RECLAIM)
    _finish(cluster, "a")

    assert_same()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_paused_job_resumes_with_any_number_of_workers(cluster, assert_same, before, after):
    first, second = "abc"[:before], "xyz"[:after]
    cluster.start(*first)
    cluster.ready(*first)
    cluster.call(*first)
    cluster.trains(*first)
    cluster.allow(7)
    cluster.holds_at(7, *first)
    cluster.call(reason=Reason.PAUSE)
    cluster.allow(UPDATES)
    assert [cluster.code(name) for name in first] == [143] * before

    cluster.start(*second)
    cluster.ready(*second)
    cluster.call(*second)
    _finish(cluster, *second)

    assert_same()


def test_job_resumes_from_the_newest_checkpoint_after_losing_all_workers(cluster, assert_same):
    cluster.start("a", "b", EVERY="3")
    cluster.ready("a", "b")
    cluster.call("a", "b")
    cluster.allow(8)
    cluster.holds_at(8, "a", "b")
    for name in ("a", "b"):
        cluster.send(name, signal.SIGKILL)
        cluster.code(name)
    cluster.start("c")
    cluster.ready("c")
    cluster.call("c")
    _finish(cluster, "c")

    assert_same()


@pytest.mark.parametrize("phase", ["waits", "meets", "trains-alone", "trains-in-a-group"])
def test_training_worker_stopped_in_any_phase_exits_with_143_and_loses_no_update(
    cluster, assert_same, phase
):
    cluster.start("a", "b")
    cluster.ready("a", "b")
    remaining_workers: tuple[str, ...] = ("a",)
    if phase == "waits":
        cluster.call("a")
        cluster.trains("a")
    elif phase == "meets":
        # b joins the store of this generation, a does not: it has not finished its update.
        cluster.call("a")
        cluster.trains("a")
        cluster.call("a", "b")
    elif phase == "trains-alone":
        cluster.call("b")
        cluster.trains("b")
        remaining_workers = ()
    else:
        cluster.call("a", "b")
        cluster.trains("a", "b")
    cluster.send("b", signal.SIGTERM)
    cluster.allow(6)
    if phase == "trains-in-a-group":
        cluster.until(lambda: cluster._status("b").state is WorkerPhase.LEFT)
    assert cluster.code("b") == 143

    if not remaining_workers:
        cluster.start("a2")
        cluster.ready("a2")
        remaining_workers = ("a2",)
    cluster.call(*remaining_workers, reason=Reason.RECLAIM)
    _finish(cluster, *remaining_workers)
    assert_same()
