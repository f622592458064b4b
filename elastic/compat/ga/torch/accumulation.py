"""The gradient that an optimizer accumulates over several micro-batches.

The sum is stored beside `.grad`, which between two updates holds the last micro-batch alone:
clipping or unscaling it does no harm (docs/migration.md).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

import torch
from torch.amp.grad_scaler import GradScaler
from torch.utils.hooks import RemovableHandle

REDUCTIONS = ("mean", "sum")
_NARROW = (torch.float16, torch.bfloat16)


class Accumulation:
    """The state of an optimizer between two updates; its property `runai`.

    With `reduction="mean"` an update uses the mean of its micro-batches' gradients, weighted by
    `samples`; with `"sum"` their sum.
    """

    def __init__(self, steps: int, reduction: str) -> None:
        """Start empty.

        Raises:
            TypeError: if `steps` is not an integer.
            ValueError: if it is below 1, or the reduction neither "mean" nor "sum".
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f"The reduction must be one of {REDUCTIONS}, not {reduction!r}.")
        self.reduction = reduction
        self.steps = steps
        self.step = 0
        """Number of `step()` calls over the optimizer's life."""
        self.position = 0
        """Completed micro-batches of the next update."""
        self.updated = False
        """True if the last `step()` changed the weights."""
        self.samples: float = 1
        """Weight of the next micro-batches, their number of samples, until set again."""
        self.overflow = False
        """True if a GradScaler found an infinite gradient in this update."""
        self.scales_itself = False
        """True if the inner optimizer unscales gradients in its own kernel."""
        self.scaler: GradScaler | None = None
        """The scaler of the accumulated gradient."""
        self.complete = False
        """True if the update was closed early: `.grad` is the whole update's before `step`."""
        self.inner_step: Callable[..., float | None] | None = None
        """A `step` set on the optimizer object, as by PyTorch's schedulers."""
        self.rates: list[object] = []
        """The learning rates of the groups at the last `step()`."""
        self._gathered_samples: float = 0
        self._gathered: dict[torch.Tensor, torch.Tensor] = {}
        self._arriving: dict[torch.Tensor, tuple[torch.Tensor, bool]] = {}
        self._arrived: set[torch.Tensor] = set()
        self._handles: dict[torch.Tensor, list[RemovableHandle]] = {}

    @property
    def steps(self) -> int:
        """Micro-batches of an update; a change applies to the current update."""
        return self._steps

    @steps.setter
    def steps(self, steps: object) -> None:
        if not isinstance(steps, int) or isinstance(steps, bool):
            raise TypeError(f"The steps of an update must be an integer, not {steps!r}.")
        if steps < 1:
            raise ValueError(f"The steps of an update must be at least 1, not {steps}.")
        self._steps = steps

    @property
    def closing(self) -> bool:
        """True if the next micro-batch is the update's last."""
        return self.position >= self.steps - 1

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Register hooks on parameters that have none yet, to accumulate their gradients."""
        me = weakref.ref(self)  # parameters outlive an optimizer
        for parameter in parameters:
            if parameter in self._handles or not parameter.requires_grad:
                continue

            def record_arrival(gradient: torch.Tensor, parameter: torch.Tensor = parameter) -> None:
                accumulation = me()
                if accumulation is not None and not accumulation._idle:  # noqa: SLF001
                    accumulation._arriving[parameter] = gradient, parameter.grad is None  # noqa: SLF001

            def accumulate_arrival(parameter: torch.Tensor) -> None:
                accumulation = me()
                if accumulation is not None and not accumulation._idle:  # noqa: SLF001
                    accumulation._accumulate_arrived(parameter)  # noqa: SLF001

            # The first hook alone would also see `torch.autograd.grad`, which changes no `.grad`.
            self._handles[parameter] = [
                parameter.register_hook(record_arrival),
                parameter.register_post_accumulate_grad_hook(accumulate_arrival),
            ]

    def unwatch(self) -> None:
        """Remove the hooks, and clear the accumulation."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()
        self.clear()

    @torch.no_grad()
    def accumulate(self, parameters: Iterable[torch.Tensor]) -> None:
        """Accumulate a micro-batch's gradients, with more to follow."""
        for parameter in parameters:
            if parameter.grad is not None:
                if (
                    parameter not in self._arrived
                ):  # set by hand, or thawed since the last micro-batch
                    self._gather(parameter, parameter.grad)
                parameter.grad = None
        self._gathered_samples += self._weight
        self.position += 1
        self._forget_arrivals()

    @torch.no_grad()
    def close(self, parameters: Iterable[torch.Tensor]) -> None:
        """Complete `.grad` of parameters without a gradient in the last micro-batch."""
        for parameter in parameters:
            if parameter in self._arrived:
                continue
            gathered = self._gathered.pop(parameter, None)
            if parameter.grad is not None and not self._idle:
                parameter.grad.mul_(self._weight * self._share)
            if gathered is not None:
                gathered = gathered.mul_(self._share).to(parameter.dtype)
                parameter.grad = gathered if parameter.grad is None else parameter.grad + gathered

    def close_early(self, parameters: Iterable[torch.Tensor]) -> None:
        """Set `.grad` to the mean, or sum, of the micro-batches so far."""
        weight, self.samples = self.samples, 0
        self.close(parameters)
        self.samples, self.complete = weight, True

    @property
    def arrived(self) -> bool:
        """True if a gradient arrived after the last `step`."""
        return bool(self._arrived)

    @torch.no_grad()
    def rescale(self, factor: torch.Tensor) -> None:
        """Multiply the sums by a factor, as the scale of later micro-batches has changed."""
        for gathered in self._gathered.values():
            gathered.mul_(factor.to(gathered.device))

    def clear(self) -> None:
        """Start the next update with empty sums."""
        self.position = 0
        self.overflow = self.complete = False
        self.scaler = None
        self._gathered_samples = 0
        self._gathered.clear()
        self._forget_arrivals()

    @property
    def _idle(self) -> bool:
        """True if nothing must be accumulated: the update has one micro-batch, or is complete."""
        return self.complete or (self.steps == 1 and self.position == 0)

    @property
    def _weight(self) -> float:
        return self.samples if self.reduction == "mean" else 1

    @property
    def _share(self) -> float:
        """Factor of the weighted sum up to the current micro-batch."""
        return 1 / (self._gathered_samples + self._weight) if self.reduction == "mean" else 1

    def _forget_arrivals(self) -> None:
        self._arriving.clear()
        self._arrived.clear()

    @torch.no_grad()
    def _accumulate_arrived(self, parameter: torch.Tensor) -> None:
        """Accumulate a gradient that backward has just added to `.grad`."""
        gradient, was_empty = self._arriving.pop(parameter)
        self._arrived.add(parameter)
        if not self.closing:
            self._gather(parameter, gradient)
            return
        # Now, not in `step`: clipping in between must see the whole update's gradient.
        gathered = self._gathered.pop(parameter, None)
        total, share = parameter.grad, self._share
        assert total is not None
        if was_empty:
            total.mul_(self._weight * share)
        else:
            total.add_(gradient, alpha=self._weight * share - 1)
        if gathered is not None:
            _add(parameter, gathered, share)

    def _gather(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add a micro-batch's weighted gradient to the parameter's sum."""
        gathered, gradient = self._gathered.get(parameter), gradient.detach()
        if gathered is None:
            # A copy: backward may pass the same tensor for another parameter.
            wide = gradient.float() if gradient.dtype in _NARROW else gradient
            self._gathered[parameter] = wide * self._weight
        elif gathered.is_sparse and not gradient.is_sparse:
            self._gathered[parameter] = gradient * self._weight + gathered
        else:
            gathered.add_(gradient, alpha=self._weight)


def _add(parameter: torch.Tensor, gathered: torch.Tensor, share: float) -> None:
    """Add an accumulated gradient to `.grad`, dense or sparse."""
    assert parameter.grad is not None
    if parameter.grad.is_sparse and not gathered.is_sparse:
        parameter.grad = gathered.mul_(share).add_(parameter.grad)
    else:
        parameter.grad.add_(gathered, alpha=share)
