"""The plan: the samples of an update that each rank computes (I1 of docs/dev/elastic.md)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.elastic.batching import plan_batches

SIZES = st.tuples(st.integers(1, 2000), st.integers(1, 300), st.integers(1, 40))


@pytest.mark.parametrize(
    ("global_batch", "gpu_batch", "ranks", "micro_batches"),
    [
        pytest.param(256, 64, 1, [[64, 64, 64, 64]], id="one-gpu-accumulates"),
        pytest.param(256, 64, 2, [[64, 64]] * 2, id="two-gpus"),
        pytest.param(256, 64, 4, [[64]] * 4, id="four-gpus-no-accumulation"),
        pytest.param(256, 64, 3, [[43, 43], [43, 42], [43, 42]], id="does-not-divide"),
        pytest.param(256, 64, 5, [[52], [51], [51], [51], [51]], id="more-gpus-than-needed"),
        pytest.param(100, 32, 1, [[25, 25, 25, 25]], id="remainder-spread"),
        pytest.param(10, 64, 16, [[1]] * 10 + [[0]] * 6, id="more-ranks-than-samples"),
        pytest.param(257, 64, 4, [[33, 32], *[[32, 32]] * 3], id="one-sample-too-many"),
    ],
)
def test_global_batch_is_divided_among_ranks(global_batch, gpu_batch, ranks, micro_batches):
    plan = plan_batches(global_batch, gpu_batch, ranks)

    assert [list(sizes) for sizes in plan.micro_batches] == micro_batches


@given(SIZES)
def test_batch_plan_has_each_sample_once_within_the_gpu_batch(sizes):
    global_batch, gpu_batch, ranks = sizes
    plan = plan_batches(*sizes)
    flat = [size for rank in plan.micro_batches for size in rank]

    assert sum(flat) == global_batch
    assert max(flat) == plan.batch_size <= gpu_batch
    assert max(flat) - min(flat) <= 1
    assert {len(rank) for rank in plan.micro_batches} == {plan.steps}
    assert plan.ranks == ranks


@given(SIZES)
def test_batch_plan_has_the_fewest_possible_steps(sizes):
    global_batch, gpu_batch, ranks = sizes
    steps = plan_batches(*sizes).steps

    assert (steps - 1) * gpu_batch * ranks < global_batch


@given(SIZES)
def test_batch_plan_slices_are_contiguous_and_weights_sum_to_one(sizes):
    plan = plan_batches(*sizes)
    ends = [start + share for start, share in zip(plan.offsets, plan.shares, strict=True)]

    assert [0, *ends] == [*plan.offsets, plan.global_batch]
    weights = [plan.weight(r, s) for r in range(plan.ranks) for s in range(plan.steps)]
    assert sum(weights) == Fraction(1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        pytest.param((0, 64), ValueError, "global batch size must be at least 1, not 0", id="zero"),
        pytest.param((256, -1), ValueError, "GPU batch size must be at least 1, not -1", id="neg"),
        pytest.param((256, 64, 0), ValueError, "ranks must be at least 1, not 0", id="no-ranks"),
        pytest.param((256.0, 64), TypeError, "must be an integer, not 256.0", id="float"),
        pytest.param((True, 64), TypeError, "must be an integer, not True", id="bool"),
    ],
)
def test_plan_batches_refuses_invalid_batch_sizes_and_ranks(arguments, error, message):
    with pytest.raises(error, match=message):
        plan_batches(*arguments)
