"""`flush` of an accumulating optimizer ends an update like `step`, with or without a scaler."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")
optim = pytest.importorskip("runai.ga.torch.optim")

IMPLEMENTATIONS = pytest.mark.parametrize(
    "make_optimizer",
    [
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, foreach=False), id="SGD"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, foreach=True), id="foreach"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, fused=True), id="fused"),
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.1, fused=True), id="fused-Adam"),
    ],
)


class Epoch:
    """A script's epoch with a GradScaler over one weight, ended by `flush`."""

    def __init__(self, make_optimizer, *, steps=1, clip=False, **scaler):
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = make_optimizer([self.weight])
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
@pytest.mark.parametrize(
    ("flush_time", "clip"),
    [
        pytest.param("after-update", True, id="after-update-clipped"),
        pytest.param("before-update", False, id="before-update"),
        pytest.param("after-unscale", True, id="after-unscale-clipped"),
    ],
)
def test_flush_with_a_scaler_updates_by_the_remaining_micro_batches(
    make_optimizer, flush_time, clip
):
    plain, accumulated = Epoch(make_optimizer, clip=clip), Epoch(make_optimizer, steps=4, clip=clip)
    for _ in range(2):
        # The mean of four micro-batches is 3, and that of the remaining two is 2.
        plain.train(3, 2)
        accumulated.train(2, 4, 1, 5, 3)
        accumulated.train(1, update=flush_time != "before-update")
        if flush_time == "after-unscale":
            accumulated.scaler.unscale_(accumulated.optimizer)
        accumulated.flush()
        if flush_time == "before-update":
            accumulated.scaler.update()

    torch.testing.assert_close(accumulated.weight, plain.weight)
    assert accumulated.optimizer.runai.updated
    assert accumulated.scaler.state_dict() == plain.scaler.state_dict()


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("flush_time", "clip", "gradients"),
    [
        pytest.param("after-update", True, (float("inf"), 1), id="first-clipped"),
        pytest.param("after-update", False, (1, float("nan")), id="last"),
        pytest.param("before-update", True, (1, float("nan")), id="last-before-update-clipped"),
    ],
)
def test_flush_of_an_infinite_gradient_skips_the_update_and_halves_the_scale_once(
    make_optimizer, flush_time, clip, gradients
):
    plain, accumulated = Epoch(make_optimizer, clip=clip), Epoch(make_optimizer, steps=4, clip=clip)
    plain.train(float("inf"))
    accumulated.train(gradients[0])
    accumulated.train(gradients[1], update=flush_time != "before-update")
    accumulated.flush()
    if flush_time == "before-update":
        accumulated.scaler.update()

    assert accumulated.weight.item() == 0
    assert not accumulated.optimizer.runai.updated
    assert accumulated.scaler.state_dict() == plain.scaler.state_dict()
    plain.train(2)
    accumulated.train(1, 3, 3, 1)
    torch.testing.assert_close(accumulated.weight, plain.weight)


@pytest.mark.parametrize("fused", [False, True])
def test_accumulating_optimizer_reports_no_update_after_an_infinite_gradient(fused):
    epoch = Epoch(lambda p: torch.optim.Adam(p, lr=0.1, fused=fused), steps=2)
    epoch.train(1, float("inf"))

    assert not epoch.optimizer.runai.updated


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("scale_change", "gradients"),
    [
        pytest.param("by-hand", (5,), id="by-hand-then-step"),
        pytest.param("by-another-optimizer", (), id="by-another-optimizer-then-flush"),
    ],
)
def test_gradient_scale_changed_within_an_update_does_not_affect_the_weights(
    make_optimizer, scale_change, gradients
):
    plain, accumulated = Epoch(make_optimizer), Epoch(make_optimizer, steps=3, growth_interval=1)
    plain.train((1 + 3 + sum(gradients)) / (2 + len(gradients)))
    accumulated.train(1)
    if scale_change == "by-hand":
        accumulated.scaler.update(64.0)
    else:
        other = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([other], lr=0.1)
        accumulated.scaler.scale(other.sum()).backward()
        accumulated.scaler.step(optimizer)
        accumulated.scaler.update()
    assert accumulated.scaler.get_scale() != 1024
    accumulated.train(3, *gradients)
    accumulated.flush()

    torch.testing.assert_close(accumulated.weight, plain.weight)


def test_gradient_flush_without_accumulated_gradients_changes_no_weight():
    epoch, calls = Epoch(lambda p: torch.optim.SGD(p, lr=0.1), steps=2), []
    epoch.optimizer.flush(lambda: calls.append("before the first"))
    epoch.train(1, 3)
    weight, state = epoch.weight.item(), epoch.scaler.state_dict()
    epoch.optimizer.flush(lambda: calls.append("after an update"))

    assert epoch.weight.item() == weight
    assert epoch.scaler.state_dict() == state
    assert calls == []


def test_flush_with_a_disabled_scaler_is_a_plain_update():
    epoch = Epoch(lambda p: torch.optim.SGD(p, lr=1), steps=4, clip=True, enabled=False)
    epoch.train(1, 3)
    epoch.flush()

    assert epoch.weight.item() == pytest.approx(-0.5)  # the mean of 1 and 3, clipped to 0.5


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1)


def test_flush_clips_the_whole_gradient_before_it_steps():
    plain, accumulated = (Epoch(sgd, steps=s, clip=True, enabled=False) for s in (1, 4))
    plain.train(0.4)  # the mean of 0.1 and 0.7, too small to be clipped
    accumulated.train(0.1, 0.7)
    accumulated.flush()
    plain.train(3)
    accumulated.train(1, 5)
    accumulated.flush()

    torch.testing.assert_close(accumulated.weight, plain.weight)


def test_gradient_flush_after_steps_with_a_closure_updates_the_weights():
    epoch = Epoch(sgd, steps=4)
    for gradient in (1, 3):

        def closure(gradient=gradient):
            epoch.optimizer.zero_grad()
            loss = (gradient * epoch.weight).sum()
            loss.backward()
            return loss

        epoch.optimizer.step(closure)
    epoch.flush()

    assert epoch.weight.item() == -2  # the mean of 1 and 3


@pytest.mark.parametrize("step_count", [0, 1])
def test_gradient_flush_instead_of_a_step_is_refused(step_count):
    epoch = Epoch(sgd, steps=4, enabled=False)
    epoch.train(*[1] * step_count)
    epoch.weight.sum().backward()

    with pytest.raises(RuntimeError, match=r"call step\(\) for each micro-batch, then flush\(\)"):
        epoch.flush()


def test_failed_gradient_flush_leaves_no_gradients_for_the_next_update():
    epoch = Epoch(sgd, steps=2, enabled=False)
    epoch.train(1)
    with pytest.raises(ZeroDivisionError):
        epoch.optimizer.flush(lambda: 1 / 0)
    epoch.train(3, 5)

    assert epoch.weight.item() == -4  # the mean of 3 and 5
