"""One scale for all micro-batches of an update: `GradScaler.update` waits until it is complete.

Knows which optimizers are in the middle of an update. A script calls `update` for each
micro-batch; a scale that changed between two of them would weigh one more than the other.
Called by `optim`.
"""

from __future__ import annotations

import functools
import weakref

import torch
from torch.amp.grad_scaler import GradScaler

__all__ = ["under_way", "wait_for_updates"]

under_way: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""The optimizers that have gathered some micro-batches of an update, not all."""


@functools.cache
def wait_for_updates() -> None:
    """Let scalers keep their scale while an optimizer they stepped is in the middle of an update.

    PyTorch offers no hook for it: the method is replaced, once, for all scalers. With other
    optimizers they do what they did.
    """
    update = GradScaler.update

    @functools.wraps(update)
    def update_when_complete(
        self: GradScaler, new_scale: float | torch.Tensor | None = None
    ) -> None:
        states = self._per_optimizer_states
        if new_scale is None and states.keys() & {id(optimizer) for optimizer in under_way}:
            states.clear()  # as after an update: `step` may be called again
        else:
            update(self, new_scale)

    GradScaler.update = update_when_complete  # type: ignore[method-assign]
