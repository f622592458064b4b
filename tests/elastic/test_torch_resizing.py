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
SIGTERM_EXIT_CODE = 128 + signal.SIGTERM


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the weights of the same training on one rank: by hand, or in slices."""
    from elastic_trainings import Training, train_by_hand, train_elastically

    @cache
    def weights(mode):
        if mode == "exact":
            return train_by_hand(Training())
        store = tmp_path_factory.mktemp("alone") / "store"
        return run_ranks(train_elastically, 1, store, Training(**_training(mode)))[0]

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
    cluster.allow_updates(0)
    yield cluster
    cluster.close()


@pytest.fixture
def assert_same_result(cluster, mode, undisturbed):
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
    cluster.allow_updates(UPDATES)
    assert [cluster.exit_code(name) for name in names] == [0] * len(names)


@pytest.mark.parametrize("mode", ["exact", "bitwise"])
def test_training_resized_within_epochs_uses_each_sample_once(cluster, assert_same_result):
    cluster.start("a", "b", "c", "d")
    cluster.wait_until_ready("a", "b", "c", "d")
    cluster.set_target("a")
    cluster.wait_until_training("a")
    cluster.allow_updates(2)
    cluster.wait_at_update(2, "a")
    cluster.set_target("a", "b", "c")
    cluster.allow_updates(5)
    cluster.wait_until_training("a", "b", "c")
    cluster.wait_at_update(5, "a", "b", "c")
    cluster.set_target("a", "c", reason=Reason.RECLAIM)
    cluster.allow_updates(8)
    assert cluster.exit_code("b") == SIGTERM_EXIT_CODE
    cluster.wait_until_training("a", "c")
    cluster.start("b")
    cluster.wait_until_ready("b")
    cluster.set_target("a", "c", "d", "b")
    cluster.allow_updates(11)
    cluster.wait_until_training("a", "c", "d", "b")
    _finish(cluster, "a", "b", "c", "d")

    assert_same_result()


def test_rank_0_leaves_and_rejoins_without_a_checkpoint(cluster, assert_same_result):
    cluster.start("a", "b")
    cluster.wait_until_ready("a", "b")
    cluster.set_target("a")
    cluster.wait_until_training("a")
    cluster.allow_updates(2)
    cluster.wait_at_update(2, "a")
    cluster.set_target("a", "b")
    cluster.allow_updates(5)
    cluster.wait_until_training("a", "b")
    cluster.wait_at_update(5, "a", "b")
    cluster.set_target("b", reason=Reason.RECLAIM)
    cluster.allow_updates(9)
    assert cluster.exit_code("a") == SIGTERM_EXIT_CODE
    cluster.wait_until_training("b")
    cluster.start("a")
    cluster.wait_until_ready("a")
    cluster.set_target("b", "a")
    cluster.allow_updates(12)
    cluster.wait_until_training("a", "b")
    _finish(cluster, "a", "b")

    assert_same_result()
    assert not list((cluster.directory / "checkpoints").glob("*2.ckpt")), "a worker saved between"


@pytest.mark.parametrize(
    ("mode", "victim"),
    [
        pytest.param("exact", "a", id="exact-rank-0"),
        pytest.param("exact", "c", id="exact-last-rank"),
        pytest.param("bitwise", "b", id="bitwise-rank-1"),
    ],
)
def test_killed_worker_costs_the_survivors_no_update(cluster, assert_same_result, victim):
    cluster.start("a", "b", "c")
    cluster.wait_until_ready("a", "b", "c")
    cluster.set_target("a", "b", "c")
    cluster.wait_until_training("a", "b", "c")
    cluster.allow_updates(
        1
    )  # DDP would rebuild its buckets, collectively, in the next forward pass
    cluster.wait_at_update(1, "a", "b", "c")
    cluster.send_signal(victim, signal.SIGKILL)
    assert cluster.exit_code(victim) == -signal.SIGKILL
    survivors = sorted({"a", "b", "c"} - {victim})
    cluster.allow_updates(6)
    cluster.set_target(*survivors, reason=Reason.RECLAIM)
    cluster.wait_until_training(*survivors)
    _finish(cluster, *survivors)

    assert_same_result()


def test_training_loses_no_update_after_a_joining_worker_is_killed(cluster, assert_same_result):
    cluster.start("a", "b")
    cluster.wait_until_ready("a", "b")
    cluster.set_target("a")
    cluster.wait_until_training("a")
    cluster.send_signal("b", signal.SIGKILL)
    assert cluster.exit_code("b") == -signal.SIGKILL
    cluster.set_target("a", "b")
    cluster.allow_updates(3)
    cluster.set_target("a", reason=Reason.RECLAIM)
    _finish(cluster, "a")

    assert_same_result()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_paused_job_resumes_with_any_number_of_workers(cluster, assert_same_result, before, after):
    first, second = "abc"[:before], "xyz"[:after]
    cluster.start(*first)
    cluster.wait_until_ready(*first)
    cluster.set_target(*first)
    cluster.wait_until_training(*first)
    cluster.allow_updates(7)
    cluster.wait_at_update(7, *first)
    cluster.set_target(reason=Reason.PAUSE)
    cluster.allow_updates(UPDATES)
    assert [cluster.exit_code(name) for name in first] == [SIGTERM_EXIT_CODE] * before

    cluster.start(*second)
    cluster.wait_until_ready(*second)
    cluster.set_target(*second)
    _finish(cluster, *second)

    assert_same_result()


def test_job_resumes_from_the_newest_checkpoint_after_losing_all_workers(
    cluster, assert_same_result
):
    cluster.start("a", "b", EVERY="3")  # a checkpoint every 3 updates
    cluster.wait_until_ready("a", "b")
    cluster.set_target("a", "b")
    cluster.allow_updates(8)
    cluster.wait_at_update(8, "a", "b")
    for name in ("a", "b"):
        cluster.send_signal(name, signal.SIGKILL)
        cluster.exit_code(name)
    cluster.start("c")
    cluster.wait_until_ready("c")
    cluster.set_target("c")
    _finish(cluster, "c")

    assert_same_result()


@pytest.mark.parametrize("phase", ["waits", "meets", "trains-alone", "trains-in-a-group"])
def test_training_worker_stopped_in_any_phase_exits_with_143_and_loses_no_update(
    cluster, assert_same_result, phase
):
    cluster.start("a", "b")
    cluster.wait_until_ready("a", "b")
    remaining_workers: tuple[str, ...] = ("a",)
    if phase == "waits":
        cluster.set_target("a")
        cluster.wait_until_training("a")
    elif phase == "meets":
        # b joins the store of this generation, a does not: it has not finished its update.
        cluster.set_target("a")
        cluster.wait_until_training("a")
        cluster.set_target("a", "b")
    elif phase == "trains-alone":
        cluster.set_target("b")
        cluster.wait_until_training("b")
        remaining_workers = ()
    else:
        cluster.set_target("a", "b")
        cluster.wait_until_training("a", "b")
    cluster.send_signal("b", signal.SIGTERM)
    cluster.allow_updates(6)
    if phase == "trains-in-a-group":
        cluster.until(lambda: cluster._status("b").state is WorkerPhase.LEFT)
    assert cluster.exit_code("b") == SIGTERM_EXIT_CODE

    if not remaining_workers:
        cluster.start("a2")
        cluster.wait_until_ready("a2")
        remaining_workers = ("a2",)
    cluster.set_target(*remaining_workers, reason=Reason.RECLAIM)
    _finish(cluster, *remaining_workers)
    assert_same_result()
