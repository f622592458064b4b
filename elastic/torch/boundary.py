"""What happens once an update, when its gradient is complete, and in which order.

Knows optimizer, scaler, schedule and average, none of which ever sees a micro-batch. The gradient
comes reduced, weighted and still scaled from `parallel` or `virtual`. Called by `job`.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_KEPT_WEIGHTS = 64


class Average(Protocol):
    """A running average of the weights, such as `torch.optim.swa_utils.AveragedModel`."""

    def update_parameters(self, model: nn.Module) -> None:
        """Take the weights of after an update into the average."""

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:  # noqa: ANN401 - torch's own
        """Take an average that was saved."""


class Boundary:
    """Turn a complete gradient into new weights: unscale, clip, step, schedule, average."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None,
        scaler: GradScaler | None,
        ema: Average | None,
    ) -> None:
        """Take the parts of a training script, each as the script made it.

        Raises:
            TypeError: if one of them counts something else than updates.
        """
        if isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                "ReduceLROnPlateau needs a metric that an update does not have: "
                "leave it out of the job and call its step(metric) after each epoch."
            )
        self.module, self.optimizer = module, optimizer
        self.scheduler, self.scaler, self.ema = scheduler, scaler, ema
        self.gradient_norm: Tensor | None = None
        """The gradient's norm at the last update that was clipped, before it was."""
        self._weights: dict[tuple[object, ...], Tensor] = {}
        self._stepped = True
        if scaler is not None:
            # A scaler that met an infinity does not call the optimizer; there is no public flag.
            optimizer.register_step_post_hook(self._note_step)

    def apply(self, clip_norm: float | None) -> bool:
        """Update the weights, and return whether they were.

        They were not where the scaler met an infinity: then it lowers its scale on every rank, and
        neither schedule nor average counts the update.
        """
        self._stepped = self.scaler is None
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if clip_norm is not None:
            self.gradient_norm = nn.utils.clip_grad_norm_(self._parameters(), clip_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self._stepped:
            if self.scheduler is not None:
                self.scheduler.step()
            if self.ema is not None:
                self.ema.update_parameters(self.module)
        self.optimizer.zero_grad(set_to_none=True)
        return self._stepped

    def backward(self, loss: Tensor, weight: float) -> None:
        """Add the gradient of a loss, scaled by one scale for all micro-batches of an update.

        Raises:
            ValueError: if the loss is not one number.
        """
        if loss.numel() != 1:
            raise ValueError(f"A loss is one number, a mean or a sum, not {tuple(loss.shape)}.")
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        place = weight, loss.dtype, loss.device, loss.shape
        seed = self._weights.get(place)
        if seed is None:
            if len(self._weights) > _KEPT_WEIGHTS:  # weights by tokens are ever new ones
                self._weights.clear()
            seed = self._weights[place] = torch.full_like(loss.detach(), weight)
        # As `(loss * weight).backward()`, without two more kernels.
        loss.backward(seed)

    def _parameters(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [parameter for group in groups for parameter in group["params"]]

    def _note_step(self, *_: object) -> None:
        self._stepped = True
