"""A subclass put over an optimizer's class, which updates once for several micro-batches.

It handles the calls of a script between two updates: `step`, `zero_grad`, `add_param_group`,
`load_state_dict`, a GradScaler, copies. `accumulation` sums the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from runai.ga.torch.accumulation import Accumulation
from runai.ga.torch.scaling import accumulating_optimizers, unscaling, wait_for_updates
from runai.utils.notices import notice

SCHEDULE_NOTICE = (
    "runai.ga.torch: the learning rate changed between the micro-batches of an update. A schedule"
    " that counts updates is stepped `if optimizer.runai.updated: scheduler.step()`; one whose"
    " horizon counts micro-batches is right as it is."
)

SCALING = ("grad_scale", "found_inf")
"""Attributes that a GradScaler sets on an optimizer during a `step`."""

if TYPE_CHECKING:
    _Inner = torch.optim.Optimizer
else:
    _Inner = object  # the optimizer's own class follows ours in the MRO


class Accumulating(_Inner):
    """An optimizer that updates on each `runai.steps`-th call of `step`."""

    @property
    def runai(self) -> Accumulation:
        """The accumulation between two updates."""
        return cast("Accumulation", self.__dict__["_runai"])

    def accumulate(self, accumulation: Accumulation) -> None:
        """Start the accumulation, once, after the class was replaced."""
        self.__dict__["_runai"] = accumulation
        # With it a scaler calls `step` for each micro-batch, also for an infinite gradient.
        self.__dict__["_step_supports_amp_scaling"] = True
        accumulation.watch(self._parameters())
        wait_for_updates()

    def flush(self, before: Callable[[], object] | None = None) -> None:
        """Update from a partial accumulation at the end of an epoch; do nothing without one.

        With a GradScaler this calls its `unscale_`, `before`, its `step` and, if it was deferred,
        its `update`.

        Args:
            before: called between unscaling and the update, e.g. to clip the whole gradient in the
                parameters' `grad`.

        Raises:
            RuntimeError: if `step` did not follow a backward pass.
        """
        accumulation = self.runai
        if accumulation.arrived:
            raise RuntimeError(
                "flush() after a backward pass without step(): call step() for each micro-batch,"
                " then flush()."
            )
        if not accumulation.position:
            return
        accumulation.close_early(self._parameters())
        try:
            with unscaling(accumulation.scaler, self, early=before is not None) as step:
                if before is not None:
                    before()
                step()
        finally:
            self._begin_update()

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Accumulate a micro-batch's gradient; update after the last one."""
        accumulation, loss = self.runai, None
        if accumulation.complete:
            return self._step_inner(None)
        accumulation.step += 1
        self.__dict__["_opt_called"] = True  # read by PyTorch's schedulers
        self._warn_of_schedule()
        if accumulation.closing:
            return self._step_inner(self._complete_gradient(closure))
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        accumulation.overflow |= bool(getattr(self, "found_inf", False))
        accumulation.accumulate(self._parameters())
        accumulation.watch(self._parameters())
        accumulation.updated = False
        accumulating_optimizers.add(self)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - PyTorch's
        """Clear gradients at the start of an update; do nothing within one."""
        if self.runai.position == 0:
            self.runai.clear()
            super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, and accumulate their gradients from now on."""
        super().add_param_group(param_group)
        self.runai.watch(self._parameters())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the inner optimizer's state, saved with any `steps`, without, or by 0.4.1."""
        rest = {key: value for key, value in state_dict["state"].items() if key != "runai"}
        super().load_state_dict({**state_dict, "state": rest})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_runai": (self.runai.steps, self.runai.reduction)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({key: value for key, value in state.items() if key != "_runai"})
        if "_runai" in state:  # a copy; absent in `load_state_dict`
            self.accumulate(Accumulation(*state["_runai"]))

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _blank, (plain(type(self)),), self.__getstate__()

    def _parameters(self) -> Iterator[torch.Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def _complete_gradient(self, closure: Callable[[], float] | None) -> Callable[[], float] | None:
        """Complete the gradient now, or after the closure that computes its last part."""
        if closure is None:
            self.runai.close(self._parameters())
            return None

        def compute_and_close() -> float:
            loss = closure()
            self.runai.close(self._parameters())
            return loss

        return compute_and_close

    def _step_inner(self, closure: Callable[[], float] | None) -> float | None:
        """Step the inner optimizer, unless a scaler found an infinite gradient."""
        accumulation, loss = self.runai, None
        skipped = accumulation.overflow or bool(getattr(self, "found_inf", False))
        scaling: dict[str, Any] = {}
        if not accumulation.scales_itself:  # then hide the scaler's attributes from it
            scaling = {k: self.__dict__.pop(k) for k in SCALING if k in self.__dict__}
            if not skipped:
                self._unscale(scaling.get("grad_scale"))
        if not skipped:
            loss = (accumulation.inner_step or super().step)(closure)
        self.__dict__.update(scaling)  # the scaler removes them
        accumulation.updated = not skipped
        self._begin_update()
        return loss

    def _begin_update(self) -> None:
        """Start the next update: no micro-batch is accumulated."""
        self.runai.clear()
        accumulating_optimizers.discard(self)

    def _unscale(self, scale: torch.Tensor | None) -> None:
        if scale is not None:
            for parameter in self._parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(scale)

    def _warn_of_schedule(self) -> None:
        """Warn once if learning rates change within an update."""
        rates = [group.get("lr") for group in self.param_groups]
        if any(isinstance(rate, torch.Tensor) for rate in rates):
            return  # comparing tensors may block on the device
        if self.runai.position and self.runai.rates != rates:
            notice(SCHEDULE_NOTICE)
        self.runai.rates = rates


# Step hooks run with the inner `step`, once per update; a later scheduler of PyTorch does not need
# to wrap our `step`.
for _mark in ("hooked", "_wrapped_by_lr_sched"):
    setattr(Accumulating.step, _mark, True)


_KINDS: dict[type[Any], type[Any]] = {}  # one per class: a copy has its original's


def accumulating(inner: type[Any]) -> type[Any]:
    """Return the accumulating subclass of an optimizer's class, with the same name."""
    if inner not in _KINDS:
        _KINDS[inner] = type(inner.__name__, (Accumulating, inner), {"__doc__": inner.__doc__})
    return _KINDS[inner]


def plain(kind: type[Any]) -> type[Any]:
    """Return the optimizer's own class behind an accumulating one."""
    return kind.__bases__[1]


def _blank(inner: type[Any]) -> object:
    """Create an empty object for a copy."""
    return object.__new__(accumulating(inner))
