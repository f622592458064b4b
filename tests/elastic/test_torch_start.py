"""`runai.elastic.torch.init`: the number of GPUs that train together, and the batch sizes."""

from __future__ import annotations

import pytest

import runai.elastic

pytestmark = pytest.mark.torch


@pytest.fixture
def init(monkeypatch):
    from runai.elastic import torch as elastic

    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    return elastic.init


@pytest.mark.parametrize(
    ("sizes", "gpus", "steps", "batch_size", "micro_batches"),
    [
        pytest.param((256, 64), 1, 4, 64, (64, 64, 64, 64), id="one-gpu"),
        pytest.param((256, 64), 4, 1, 64, (256,), id="four-gpus-of-one-process"),
        pytest.param((256, 64), 3, 2, 43, (128, 128), id="three-do-not-divide"),
        pytest.param((10, 64), 16, 1, 1, (10,), id="more-gpus-than-samples"),
    ],
)
def test_elastic_init_sets_the_documented_attributes(
    init, sizes, gpus, steps, batch_size, micro_batches
):
    init(*sizes, gpus)

    assert runai.elastic.steps == steps
    assert runai.elastic.batch_size == batch_size
    assert runai.elastic.global_batch_size == sizes[0]
    assert runai.elastic.gpus == gpus
    assert runai.elastic.micro_batches == micro_batches
    assert runai.elastic.master


def test_ranks_are_read_from_the_launchers_environment(init, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    init(256, 64)

    assert (runai.elastic.rank, runai.elastic.gpus, runai.elastic.master) == (2, 3, False)
    assert runai.elastic.micro_batches == (43, 42)
    assert runai.elastic.plan.ranks == 3


def test_elastic_init_in_a_launched_process_accepts_several_gpus(init, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    init(256, 64, gpus=4)

    assert (runai.elastic.steps, runai.elastic.batch_size) == (1, 64)
    assert runai.elastic.micro_batches == (128,)


def test_elastic_init_without_a_gpu_plans_for_a_single_processor(init, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    init(256, 64)

    assert (runai.elastic.gpus, runai.elastic.steps) == (1, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param((256, 64, 0), ValueError, "gpus must be at least 1, not 0", id="no-gpus"),
        pytest.param((0, 64, 1), ValueError, "global batch size must be at least 1", id="empty"),
        pytest.param((256, "64", 1), TypeError, "must be an integer, not '64'", id="text"),
        pytest.param(
            (256, 64, 3), ValueError, "gpus=3 cannot be shared among 2", id="not-divisible"
        ),
    ],
)
def test_elastic_init_refuses_invalid_batch_sizes_and_gpu_counts(
    init, monkeypatch, arguments, error, message
):
    if "shared" in message:
        monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(error, match=message):
        init(*arguments)
