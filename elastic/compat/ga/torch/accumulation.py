"""The gradient that an optimizer gathers over several micro-batches before it acts.

Knows parameters, their gradients and where in an update we are. Not the optimizer's rule, nor
when `step` is called: `optim` does. What is gathered is kept beside `.grad`, which between two
updates holds the last micro-batch alone: clipping or unscaling it does no harm (docs/elastic.md).
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
    """Where an optimizer is between two updates; its property `runai`.

    With `reduction="mean"` an update uses the mean of its micro-batches' gradients, weighted by
    `samples`; with `"sum"` their sum.
    """

    def __init__(self, steps: int, reduction: str) -> None:
        """Begin with nothing gathered.

        Raises:
            TypeError: if `steps` is not an integer.
            ValueError: if it is below 1, or the reduction neither "mean" nor "sum".
        """
        if reduction not in REDUCTIONS:
            raise ValueError(f"The reduction must be one of {REDUCTIONS}, not {reduction!r}.")
        self.reduction = reduction
        self.steps = steps
        self.step = 0
        """How often `step()` was called, over the optimizer's life."""
        self.position = 0
        """Micro-batches of the coming update that are complete."""
        self.updated = False
        """Whether the last `step()` changed the weights."""
        self.samples: float = 1
        """Weight of the coming micro-batch, its number of samples; holds until set anew."""
        self.overflow = False
        """Whether a GradScaler found an infinite gradient in this update."""
        self.scales_itself = False
        """Whether the inner optimizer unscales gradients in its own kernel."""
        self.scaler: GradScaler | None = None
        """The scaler that what is gathered is multiplied by."""
        self.complete = False
        """Whether the update was closed early: `.grad` is the whole update's before `step`."""
        self.inner_step: Callable[..., float | None] | None = None
        """A `step` that was set on the optimizer itself, as schedulers of PyTorch do."""
        self.rates: list[object] = []
        """The learning rates of the groups at the last `step()`."""
        self._gathered_samples: float = 0
        self._gathered: dict[torch.Tensor, torch.Tensor] = {}
        self._arriving: dict[torch.Tensor, tuple[torch.Tensor, bool]] = {}
        self._arrived: set[torch.Tensor] = set()
        self._handles: dict[torch.Tensor, list[RemovableHandle]] = {}

    @property
    def steps(self) -> int:
        """Micro-batches of an update. Setting it counts from the update that is under way."""
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
        """Whether the coming micro-batch is the update's last."""
        return self.position >= self.steps - 1

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """See the gradients of these parameters as they arrive; known ones are left alone."""
        me = weakref.ref(self)  # parameters outlive an optimizer
        for parameter in parameters:
            if parameter in self._handles or not parameter.requires_grad:
                continue

            def arrives(gradient: torch.Tensor, parameter: torch.Tensor = parameter) -> None:
                accumulation = me()
                if accumulation is not None and not accumulation._idle:  # noqa: SLF001
                    accumulation._arriving[parameter] = gradient, parameter.grad is None  # noqa: SLF001

            def arrived(parameter: torch.Tensor) -> None:
                accumulation = me()
                if accumulation is not None and not accumulation._idle:  # noqa: SLF001
                    accumulation._take(parameter)  # noqa: SLF001

            # The first hook alone would also see `torch.autograd.grad`, which changes no `.grad`.
            self._handles[parameter] = [
                parameter.register_hook(arrives),
                parameter.register_post_accumulate_grad_hook(arrived),
            ]

    def unwatch(self) -> None:
        """Leave the parameters as they were before `watch`."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()
        self.clear()

    @torch.no_grad()
    def keep(self, parameters: Iterable[torch.Tensor]) -> None:
        """Put a micro-batch's gradients aside; another will follow."""
        for parameter in parameters:
            if parameter.grad is not None:
                if parameter not in self._arrived:  # set by hand, or thawed since the last time
                    self._gather(parameter, parameter.grad)
                parameter.grad = None
        self._gathered_samples += self._weight
        self.position += 1
        self._forget_arrivals()

    @torch.no_grad()
    def close(self, parameters: Iterable[torch.Tensor]) -> None:
        """Make `.grad` the whole update's where no gradient arrived with the last micro-batch."""
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
        """Make `.grad` the mean, or sum, of what was gathered, though micro-batches are missing."""
        weight, self.samples = self.samples, 0
        self.close(parameters)
        self.samples, self.complete = weight, True

    @property
    def arrived(self) -> bool:
        """Whether a gradient came after the last `step`."""
        return bool(self._arrived)

    @torch.no_grad()
    def rescale(self, factor: torch.Tensor) -> None:
        """Multiply what is gathered: the scale of the micro-batches that follow is another."""
        for gathered in self._gathered.values():
            gathered.mul_(factor.to(gathered.device))

    def clear(self) -> None:
        """Begin the next update with nothing gathered."""
        self.position = 0
        self.overflow = self.complete = False
        self.scaler = None
        self._gathered_samples = 0
        self._gathered.clear()
        self._forget_arrivals()

    @property
    def _idle(self) -> bool:
        """Whether there is nothing to gather: an update is one micro-batch, or complete."""
        return self.complete or (self.steps == 1 and self.position == 0)

    @property
    def _weight(self) -> float:
        return self.samples if self.reduction == "mean" else 1

    @property
    def _share(self) -> float:
        """What a weighted sum up to the present micro-batch is multiplied with."""
        return 1 / (self._gathered_samples + self._weight) if self.reduction == "mean" else 1

    def _forget_arrivals(self) -> None:
        self._arriving.clear()
        self._arrived.clear()

    @torch.no_grad()
    def _take(self, parameter: torch.Tensor) -> None:
        """Count a gradient that backward has just added to `.grad`."""
        gradient, was_empty = self._arriving.pop(parameter)
        self._arrived.add(parameter)
        if not self.closing:
            self._gather(parameter, gradient)
            return
        # Now, not in `step`: who clips between the two clips the whole update's gradient.
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
        gathered, gradient = self._gathered.get(parameter), gradient.detach()
        if gathered is None:
            # A copy: what backward hands over may be another parameter's gradient as well.
            wide = gradient.float() if gradient.dtype in _NARROW else gradient
            self._gathered[parameter] = wide * self._weight
        elif gathered.is_sparse and not gradient.is_sparse:
            self._gathered[parameter] = gradient * self._weight + gathered
        else:
            gathered.add_(gradient, alpha=self._weight)


def _add(parameter: torch.Tensor, gathered: torch.Tensor, share: float) -> None:
    """Add a gathered gradient to `.grad`, of whichever layout either is."""
    assert parameter.grad is not None
    if parameter.grad.is_sparse and not gathered.is_sparse:
        parameter.grad = gathered.mul_(share).add_(parameter.grad)
    else:
        parameter.grad.add_(gathered, alpha=share)
