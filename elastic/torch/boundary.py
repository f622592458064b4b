"""The boundary of an update: unscale, clip, step, schedule, average.

Optimizer, scaler, schedule and average run once per update, never per micro-batch. The gradient
from `parallel` or `virtual` is reduced, weighted and still scaled.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_MAX_CACHED_SEEDS = 64


class Average(Protocol):
    """A running average of the weights, such as `torch.optim.swa_utils.AveragedModel`."""

    def update_parameters(self, model: nn.Module) -> None:
        """Add the weights after an update to the average."""

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:  # noqa: ANN401 - torch's own
        """Restore a saved average."""


class Boundary:
    """The steps from a complete gradient to new weights."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        scaler: GradScaler | None,
        ema: Average | None,
    ) -> None:
        """Store the parts of a training script unchanged.

        Raises:
            TypeError: if a part does not count updates.
        """
        if isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                "ReduceLROnPlateau needs a metric that an update does not have: "
                "leave it out of the job and call its step(metric) after each epoch."
            )
        self.module, self.optimizer = module, optimizer
        self.scheduler, self.scaler, self.ema = scheduler, scaler, ema
        self.gradient_norm: Tensor | None = None
        """The gradient's norm before the last clipping."""
        self._gradient_seeds: dict[tuple[object, ...], Tensor] = {}
        self._has_stepped = True
        if scaler is not None:
            # A scaler skips the optimizer after an infinity; it has no public flag for that.
            optimizer.register_step_post_hook(self._record_step)

    def apply(self, clip_norm: float | None) -> bool:
        """Update the weights; return False if the scaler skipped the update.

        The scaler skips it after an infinity: it lowers its scale on every rank, and neither
        schedule nor average counts the update.
        """
        self._has_stepped = self.scaler is None
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if clip_norm is not None:
            self.gradient_norm = nn.utils.clip_grad_norm_(self._parameters(), clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self._has_stepped:
            if self.scheduler is not None:
                self.scheduler.step()
            if self.ema is not None:
                self.ema.update_parameters(self.module)
        self.optimizer.zero_grad(set_to_none=True)
        return self._has_stepped

    def backward(self, loss: Tensor, weight: float) -> None:
        """Add a loss's gradient, with one scale for all micro-batches of an update.

        Raises:
            ValueError: if the loss is no single number.
        """
        if loss.numel() != 1:
            raise ValueError(f"A loss is one number, a mean or a sum, not {tuple(loss.shape)}.")
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        key = weight, loss.dtype, loss.device, loss.shape
        gradient_seed = self._gradient_seeds.get(key)
        if gradient_seed is None:
            if len(self._gradient_seeds) > _MAX_CACHED_SEEDS:  # weights by tokens differ each time
                self._gradient_seeds.clear()
            gradient_seed = self._gradient_seeds[key] = torch.full_like(loss.detach(), weight)
        # Equals `(loss * weight).backward()` with two kernels less.
        loss.backward(gradient_seed)

    def _parameters(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    def _record_step(self, *_: object) -> None:
        self._has_stepped = True
