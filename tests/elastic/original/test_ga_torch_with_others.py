"""An accumulating optimizer among schedulers, a GradScaler and several processes."""

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
    """Train on given gradients of one weight; a step for each."""
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


def exponential(optimizer):
    return SCHEDULES.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(lambda o: (wrapped(o), exponential(wrapped(o))), id="made-after-wrapping"),
        pytest.param(lambda o: (o, exponential(o)), id="made-before-wrapping"),
    ],
)
def test_a_schedule_follows_updates(schedule):
    def scheduled(optimizer):
        first, scheduler = schedule(optimizer)
        return wrapped(first), scheduler

    expected = weights_after(
        lambda p: torch.optim.SGD(p, lr=1), [2, 4, 6], schedule=lambda o: (o, exponential(o))
    )
    weight = weights_after(
        lambda p: torch.optim.SGD(p, lr=1), [1, 3, 3, 5, 5, 7], schedule=scheduled
    )

    assert pytest.approx(-(2 + 4 / 2 + 6 / 4)) == expected
    assert expected == weight


def wrapped(optimizer):
    return optimizer if hasattr(optimizer, "runai") else optim.Optimizer(optimizer, 2, "mean")


def test_a_schedule_stepped_within_an_update_is_noticed_once(caplog, monkeypatch):
    monkeypatch.setattr("runai.utils.notices._SAID", set())
    weights_after(
        lambda p: torch.optim.SGD(p, lr=1),
        [1] * 8,
        schedule=lambda o: (wrapped(o), exponential(wrapped(o))),
        each_step=True,
    )

    assert [record.message for record in caplog.records] == [accumulating.SCHEDULE_NOTICE]


def test_one_cycle_over_all_micro_batches_is_as_long_with_any_number_of_steps():
    # Its horizon counts micro-batches, of which there are more where there are more steps.
    def ends_with(steps):
        weight = torch.nn.Parameter(torch.zeros(()))
        optimizer = wrapped(torch.optim.SGD([weight], lr=1))
        scheduler = SCHEDULES.OneCycleLR(optimizer, max_lr=1, total_steps=8)
        optimizer.runai.steps = steps
        for _ in range(8):
            weight.sum().backward()
            optimizer.step()
            scheduler.step()
        return optimizer.param_groups[0]["lr"]

    assert ends_with(1) == ends_with(4)


def scaled(gradients, *, steps, unscale=False, fused=False, growth_interval=1000):
    """Train with a GradScaler as a script does that knows nothing of accumulation."""
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
def test_a_scaled_update_is_the_whole_batchs(unscale, fused):
    expected, _ = scaled([2, 5], steps=1, unscale=unscale, fused=fused)
    weight, _ = scaled([1, 3, 9, 1], steps=2, unscale=unscale, fused=fused)

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
def test_an_infinite_gradient_anywhere_skips_the_update_and_halves_the_scale_once(
    overflow, unscale, fused
):
    weight, scales = scaled([*overflow, 1, 3], steps=2, unscale=unscale, fused=fused)
    expected, _ = scaled([2], steps=1, unscale=unscale, fused=fused)

    assert scales == [1024, 512, 512, 512]
    assert pytest.approx(expected, abs=1e-6) == weight


def test_the_scale_grows_by_updates_and_never_within_one():
    _, scales = scaled([1] * 8, steps=4, growth_interval=1)

    assert scales == [1024] * 3 + [2048] * 4 + [4096]


def test_scalers_serve_plain_optimizers_as_ever():
    assert scaled([1, 1], steps=1, growth_interval=1)[1] == [2048, 4096]


IMPLEMENTATIONS = pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, foreach=False), id="SGD"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, foreach=True), id="foreach"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, fused=True), id="fused"),
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.1, fused=True), id="fused-Adam"),
    ],
)


class Epoch:
    """A script's loop with a GradScaler over one weight, which `flush` ends."""

    def __init__(self, make, *, steps=1, clip=False, **scaler):
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = make([self.weight])
        if steps > 1:
            optim.Optimizer(self.optimizer, steps, "mean")
        self.scaler = torch.amp.GradScaler("cpu", **({"init_scale": 1024.0} | scaler))
        self.clip = self._clip if clip else None

    def train(self, *gradients, update=True):
        for gradient in gradients:
            self.optimizer.zero_grad()
            self.scaler.scale((self.weight * gradient).sum()).backward()
            if self.clip:
                self.scaler.unscale_(self.optimizer)
                self.clip()
            self.scaler.step(self.optimizer)
            if update:
                self.scaler.update()

    def flush(self):
        self.optimizer.flush(self.clip)

    def _clip(self):
        torch.nn.utils.clip_grad_norm_([self.weight], 0.5)


@IMPLEMENTATIONS
@pytest.mark.parametrize("clip", [False, True], ids=["as-it-is", "clipped"])
@pytest.mark.parametrize("when", ["after-update", "before-update", "after-unscale"])
def test_flush_with_a_scaler_is_the_update_of_the_rest(make, clip, when):
    plain, gathered = Epoch(make, clip=clip), Epoch(make, steps=4, clip=clip)
    for _ in range(2):
        plain.train(3, 2)
        gathered.train(2, 4, 1, 5, 3)
        gathered.train(1, update=when != "before-update")
        if when == "after-unscale":
            gathered.scaler.unscale_(gathered.optimizer)
        gathered.flush()
        if when == "before-update":
            gathered.scaler.update()

    torch.testing.assert_close(gathered.weight, plain.weight)
    assert gathered.optimizer.runai.updated
    assert gathered.scaler.state_dict() == plain.scaler.state_dict()


@IMPLEMENTATIONS
@pytest.mark.parametrize("clip", [False, True], ids=["as-it-is", "clipped"])
@pytest.mark.parametrize("when", ["after-update", "before-update"])
@pytest.mark.parametrize("rest", [(float("inf"), 1), (1, float("nan"))], ids=["first", "last"])
def test_flush_of_an_infinite_gradient_skips_and_halves_the_scale_once(make, clip, when, rest):
    plain, gathered = Epoch(make, clip=clip), Epoch(make, steps=4, clip=clip)
    plain.train(float("inf"))
    gathered.train(rest[0])
    gathered.train(rest[1], update=when != "before-update")
    gathered.flush()
    if when == "before-update":
        gathered.scaler.update()

    assert (gathered.weight.item(), gathered.optimizer.runai.updated) == (0, False)
    assert gathered.scaler.state_dict() == plain.scaler.state_dict()
    plain.train(2)
    gathered.train(1, 3, 3, 1)
    torch.testing.assert_close(gathered.weight, plain.weight)


@pytest.mark.parametrize("fused", [False, True])
def test_an_update_that_an_infinite_gradient_skips_is_not_reported_as_made(fused):
    epoch = Epoch(lambda p: torch.optim.Adam(p, lr=0.1, fused=fused), steps=2)
    epoch.train(1, float("inf"))

    assert not epoch.optimizer.runai.updated


@IMPLEMENTATIONS
@pytest.mark.parametrize("rest", [(5,), ()], ids=["by-step", "by-flush"])
@pytest.mark.parametrize("changed", ["by-hand", "by-another-optimizer"])
def test_a_scale_that_changes_within_an_update_leaves_its_weights_alone(make, changed, rest):
    plain, gathered = Epoch(make), Epoch(make, steps=3, growth_interval=1)
    plain.train((1 + 3 + sum(rest)) / (2 + len(rest)))
    gathered.train(1)
    if changed == "by-hand":
        gathered.scaler.update(64.0)
    else:
        other = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([other], lr=0.1)
        gathered.scaler.scale(other.sum()).backward()
        gathered.scaler.step(optimizer)
        gathered.scaler.update()
    assert gathered.scaler.get_scale() != 1024
    gathered.train(3, *rest)
    gathered.flush()

    torch.testing.assert_close(gathered.weight, plain.weight)


def test_flush_without_anything_gathered_calls_and_changes_nothing():
    epoch, calls = Epoch(lambda p: torch.optim.SGD(p, lr=0.1), steps=2), []
    epoch.optimizer.flush(lambda: calls.append("before the first"))
    epoch.train(1, 3)
    weight, state = epoch.weight.item(), epoch.scaler.state_dict()
    epoch.optimizer.flush(lambda: calls.append("after an update"))

    assert (epoch.weight.item(), epoch.scaler.state_dict(), calls) == (weight, state, [])


def test_flush_of_a_disabled_scaler_is_that_without_one():
    epoch = Epoch(lambda p: torch.optim.SGD(p, lr=1), steps=4, clip=True, enabled=False)
    epoch.train(1, 3)
    epoch.flush()

    assert epoch.weight.item() == pytest.approx(-0.5)


RANK = textwrap.dedent(
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
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=100)[1] for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], errors
