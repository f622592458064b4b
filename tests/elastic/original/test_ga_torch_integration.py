"""An accumulating optimizer with schedulers, a GradScaler and several processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
optim = pytest.importorskip("runai.ga.torch.optim")
accumulating = pytest.importorskip("runai.ga.torch.accumulating")

SCHEDULES = torch.optim.lr_scheduler


def weights_after(optimizer_of, gradients, *, schedule=None, each_step=False):
    """Train one weight on given gradients, with one step per gradient."""
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer, scheduler = optimizer_of([weight]), None
    if schedule is not None:
        optimizer, scheduler = schedule(optimizer)
    for gradient in gradients:
        optimizer.zero_grad()
        (weight * gradient).backward()
        optimizer.step()
        accumulates = hasattr(optimizer, "runai") and not each_step
        if scheduler is not None and (not accumulates or optimizer.runai.updated):
            scheduler.step()
    return weight.item()


def exponential_schedule(optimizer):
    return SCHEDULES.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(lambda o: (wrap(o), exponential_schedule(wrap(o))), id="made-after-wrapping"),
        pytest.param(lambda o: (o, exponential_schedule(o)), id="made-before-wrapping"),
    ],
)
def test_learning_rate_scheduler_steps_once_for_each_accumulated_update(schedule):
    def scheduled(optimizer):
        first, scheduler = schedule(optimizer)
        return wrap(first), scheduler

    expected = weights_after(
        lambda p: torch.optim.SGD(p, lr=1),
        [2, 4, 6],
        schedule=lambda o: (o, exponential_schedule(o)),
    )
    weight = weights_after(
        lambda p: torch.optim.SGD(p, lr=1), [1, 3, 3, 5, 5, 7], schedule=scheduled
    )

    assert pytest.approx(-(2 + 4 / 2 + 6 / 4)) == expected  # the rate halves at each update
    assert expected == weight


def wrap(optimizer):
    return optimizer if hasattr(optimizer, "runai") else optim.Optimizer(optimizer, 2, "mean")


def test_learning_rate_scheduler_step_within_an_update_logs_a_notice_once(caplog, monkeypatch):
    monkeypatch.setattr("runai.utils.notices._LOGGED", set())
    weights_after(
        lambda p: torch.optim.SGD(p, lr=1),
        [1] * 8,
        schedule=lambda o: (wrap(o), exponential_schedule(wrap(o))),
        each_step=True,
    )

    assert [record.message for record in caplog.records] == [accumulating.SCHEDULE_NOTICE]


def test_onecycle_schedule_length_is_independent_of_steps():
    # The scheduler's horizon counts micro-batches: more steps, more micro-batches.
    def final_learning_rate(steps):
        weight = torch.nn.Parameter(torch.zeros(()))
        optimizer = wrap(torch.optim.SGD([weight], lr=1))
        scheduler = SCHEDULES.OneCycleLR(optimizer, max_lr=1, total_steps=8)
        optimizer.runai.steps = steps
        for _ in range(8):
            weight.sum().backward()
            optimizer.step()
            scheduler.step()
        return optimizer.param_groups[0]["lr"]

    assert final_learning_rate(1) == final_learning_rate(4)


def train_with_scaler(gradients, *, steps, unscale=False, fused=False, growth_interval=1000):
    """Train with a GradScaler like a script without accumulation."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=fused)
    if steps > 1:
        optim.Optimizer(optimizer, steps, "mean")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=growth_interval)
    scales = []
    for gradient in gradients:
        optimizer.zero_grad()
        scaler.scale((weight * gradient).sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([weight], 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return weight.item(), scales


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_scaled_update_equals_the_whole_batch_update(unscale, fused):
    expected, _ = train_with_scaler([2, 5], steps=1, unscale=unscale, fused=fused)
    weight, _ = train_with_scaler([1, 3, 9, 1], steps=2, unscale=unscale, fused=fused)

    assert pytest.approx(expected, abs=1e-6) == weight


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize(
    "overflow",
    [
        pytest.param([float("inf"), 3], id="in-the-first-micro-batch"),
        pytest.param([1, float("inf")], id="in-the-last"),
    ],
)
def test_infinite_gradient_skips_the_update_and_halves_the_scale_once(overflow, unscale, fused):
    weight, scales = train_with_scaler([*overflow, 1, 3], steps=2, unscale=unscale, fused=fused)
    expected, _ = train_with_scaler([2], steps=1, unscale=unscale, fused=fused)

    assert scales == [1024, 512, 512, 512]  # 1024 at the start
    assert pytest.approx(expected, abs=1e-6) == weight


def test_gradient_scale_grows_between_updates_and_never_within():
    _, scales = train_with_scaler([1] * 8, steps=4, growth_interval=1)

    assert scales == [1024] * 3 + [2048] * 4 + [4096]  # the scale doubles at each update


def test_scaler_of_a_plain_optimizer_grows_at_each_step():
    _, scales = train_with_scaler([1, 1], steps=1, growth_interval=1)

    assert scales == [2048, 4096]  # 1024 at the start


RANK_PROGRAM = textwrap.dedent(
    """
    import sys
    import torch
    from runai.ga.torch import optim

    torch.set_num_threads(1)
    rank = int(sys.argv[1])
    store = torch.distributed.FileStore(sys.argv[2], 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = torch.nn.Linear(3, 2, dtype=torch.float64)
    x = torch.randn(3, 8, 3, dtype=torch.float64)
    model = torch.nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=True)
    optimizer = optim.SGD(2, model.parameters(), lr=0.1)
    for update in x:
        for batch in update[rank::2].chunk(2):
            optimizer.zero_grad()
            (model(batch) ** 2).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    torch.manual_seed(0)
    alone = torch.nn.Linear(3, 2, dtype=torch.float64)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for update in x:
        optimizer.zero_grad()
        (alone(update) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        optimizer.step()
    torch.testing.assert_close(plain.weight, alone.weight, rtol=0, atol=1e-12)
    torch.distributed.destroy_process_group()
    """
)


def test_two_ranks_of_ddp_make_the_update_of_the_whole_batch(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=100)[1] for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], errors
