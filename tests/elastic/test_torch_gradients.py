"""The gradient of an update is that of its mean: I2, I3 and I10 of the elastic design."""

from __future__ import annotations

import numpy as np
import pytest

from ranks import run_ranks

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("global_batch", "gpu_batch", "ranks"),
    [
        pytest.param(256, 64, 1, id="whole-micro-batches"),
        pytest.param(129, 64, 1, id="one-sample-too-many"),
        pytest.param(101, 7, 5, id="nothing-divides"),
        pytest.param(10, 64, 16, id="more-ranks-than-samples"),
        pytest.param(13, 1, 3, id="one-sample-at-a-time"),
    ],
)
def test_weighted_micro_batches_sum_to_the_gradient_of_the_mean(global_batch, gpu_batch, ranks):
    import torch

    from runai.elastic.torch.loading.position import micro_batches
    from runai.elastic.torch.parallel import RankDivision

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(global_batch, 20, generator=generator, dtype=torch.float64)
    y = torch.randn(global_batch, 1, generator=generator, dtype=torch.float64)

    def gradient(parts):
        weight = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(20, 1).requires_grad_()
        for rows, part_weight in parts:
            loss = ((x[rows] @ weight).tanh() - y[rows]).square().mean()
            (loss * part_weight).backward()
        assert weight.grad is not None
        return weight.grad

    expected = gradient([(slice(None), 1.0)])
    actual = gradient(
        (slice(micro.part.offset, micro.part.offset + max(1, micro.part.size)), micro.weight)
        for rank in range(ranks)
        for micro in micro_batches(RankDivision(gpu_batch, rank, ranks), global_batch)
    )

    assert float((actual - expected).norm() / expected.norm()) < 1e-14


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradient_of_token_losses_is_weighted_by_tokens_over_all_ranks(reduction, tmp_path):
    from elastic_gradients import expected_token_gradient, token_gradient

    expected = expected_token_gradient()
    for gradients in run_ranks(token_gradient, 3, tmp_path / "store", reduction):
        for name, gradient in expected.items():
            error = np.linalg.norm(gradients[name] - gradient) / np.linalg.norm(gradient)

            assert error < 1e-13


def test_update_without_tokens_has_a_zero_gradient(tmp_path):
    from elastic_gradients import gradient_without_tokens

    (gradients,) = run_ranks(gradient_without_tokens, 1, tmp_path / "store")

    assert all(not gradient.any() for gradient in gradients.values())


def test_gradient_scale_is_the_same_for_all_micro_batches_of_an_update(tmp_path):
    from elastic_gradients import train_with_scaler

    single_rank = run_ranks(train_with_scaler, 1, tmp_path / "one", None)[0]
    two_ranks = run_ranks(train_with_scaler, 2, tmp_path / "two", None)

    assert two_ranks[0] == two_ranks[1]
    assert two_ranks[0].pop("weight") == pytest.approx(single_rank.pop("weight"), rel=1e-6)
    assert two_ranks[0] == single_rank
    assert single_rank == {
        "scale": 1024.0,
        "rate": 0.05,
        "averaged": 1,
        "boundaries": 1,
        "update": 1,
    }


def test_infinite_gradient_on_a_single_rank_skips_the_update_on_all_ranks(tmp_path):
    from elastic_gradients import train_with_scaler

    infinite_sample = 5
    # Weight and learning rate of the start; half of the scale of 1024.
    skipped = {"weight": [0.5, 0.5], "scale": 512.0, "rate": 0.1, "averaged": 0}
    expected = skipped | {"boundaries": 1, "update": 1}

    results = run_ranks(train_with_scaler, 2, tmp_path / "store", infinite_sample)
    assert results == [expected, expected]
