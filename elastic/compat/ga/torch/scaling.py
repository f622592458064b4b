"""One scale for all micro-batches of an update: `GradScaler.update` is deferred to its end.

A script calls `update` for each micro-batch; a changed scale between two of them would weight one
more than the other.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState

accumulating_optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers with a partially accumulated update."""


@contextlib.contextmanager
def unscaling(
    scaler: GradScaler | None, optimizer: torch.optim.Optimizer, *, early: bool
) -> Generator[Callable[[], object]]:
    """Yield a `step` that applies the accumulated `.grad` through a scaler.

    Args:
        scaler: of the micro-batches, or None.
        optimizer: with the accumulated gradient.
        early: whether the gradient must be unscaled before the step.
    """
    if scaler is None or not scaler.is_enabled():
        yield optimizer.step
        return
    # Its state is of the last micro-batch, or of a later `unscale_`, which found no gradient.
    known = scaler._per_optimizer_states.pop(id(optimizer), None)  # noqa: SLF001
    if early:
        scaler.unscale_(optimizer)
    yield functools.partial(scaler.step, optimizer)
    if known is None or known["stage"] is not OptState.STEPPED:
        scaler.update()  # the script's own call after the last micro-batch was deferred


@functools.cache
def wait_for_updates() -> None:
    """Patch GradScaler to keep its scale while one of its optimizers is within an update.

    PyTorch has no hook for it: the methods are replaced once, for all scalers. With other
    optimizers they behave as before.
    """
    step, update = GradScaler.step, GradScaler.update

    @functools.wraps(step)
    def step_known(
        self: GradScaler,
        optimizer: torch.optim.Optimizer,
        *args: Any,  # noqa: ANN401 - of the optimizer's step
        **kwargs: Any,  # noqa: ANN401
    ) -> float | None:
        if (accumulation := getattr(optimizer, "_runai", None)) is not None:
            accumulation.scaler = self
        return step(self, optimizer, *args, **kwargs)

    @functools.wraps(update)
    def update_when_complete(
        self: GradScaler, new_scale: float | torch.Tensor | None = None
    ) -> None:
        if not self.is_enabled():
            return
        states = self._per_optimizer_states
        if new_scale is None and states.keys() & {
            id(optimizer) for optimizer in accumulating_optimizers
        }:
            states.clear()  # as after an update: `step` may be called again
            return
        scaled = [a for o in accumulating_optimizers if (a := vars(o)["_runai"]).scaler is self]
        scale = self._scale
        before = scale.clone() if scaled and scale is not None else None
        update(self, new_scale)
        if scale is not None and before is not None:
            for accumulation in scaled:
                accumulation.rescale(scale / before)

    GradScaler.step = step_known  # type: ignore[method-assign]
    GradScaler.update = update_when_complete  # type: ignore[method-assign]
