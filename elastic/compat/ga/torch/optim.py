"""Optimizers that update on every `steps`-th call of `step`, under the original names.

`Optimizer` wraps an existing one; `Adam(steps, ...)` and so on create each of `torch.optim`.
`runai.elastic.torch.Job` needs none, as it accumulates itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from runai.ga.torch.accumulating import Accumulating, accumulating, plain
from runai.ga.torch.accumulation import Accumulation
from runai.utils.notices import notice

T = TypeVar("T", bound=torch.optim.Optimizer)

MEAN_NOTICE = (
    "runai.ga.torch: an update uses the mean of its micro-batches' gradients, which is right for a"
    ' loss that is a mean. runai 0.4.1 used their sum: pass reduction="sum" for a summed loss, or'
    ' reduction="mean" to read this no more.'
)


class State:
    """The extra state in checkpoints of runai 0.4.1; loaded, not used."""

    steps: int
    step: int


torch.serialization.add_safe_globals([State])  # so that `torch.load` opens such a checkpoint


def Optimizer(optimizer: T, steps: int, reduction: str | None = None) -> T:  # noqa: N802 - the original's
    """Make an optimizer update on every `steps`-th call of `step`; return the same object.

    Args:
        optimizer: any but LBFGS; its moments, hooks and groups stay unchanged.
        steps: micro-batches of an update, such as `runai.elastic.steps`.
        reduction: "mean" (the default), exact for a loss that is a mean over equal micro-batches;
            "sum" for a summed loss, as in runai 0.4.1.

    Raises:
        TypeError: if it is no optimizer of PyTorch, or `steps` no integer.
        ValueError: if `steps` is below 1, the reduction unknown, or the optimizer LBFGS.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"An optimizer of PyTorch is needed, not {type(optimizer).__name__}.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(  # noqa: TRY004 - its type is right, its method is not
            "LBFGS computes the loss several times for each update and cannot gather gradients"
            " over micro-batches; use another optimizer, or LBFGS with the whole batch."
        )
    accumulation = Accumulation(steps, reduction or "mean")
    if reduction is None and steps > 1:
        notice(MEAN_NOTICE)
    unwrap(optimizer)
    optimizer.state.pop("runai", None)  # type: ignore[call-overload] # loaded from 0.4.1
    accumulation.inner_step = optimizer.__dict__.pop("step", None)
    accumulation.scales_itself = getattr(optimizer, "_step_supports_amp_scaling", False)
    optimizer.__class__ = accumulating(type(optimizer))
    Accumulating.accumulate(optimizer, accumulation)  # type: ignore[arg-type] # it is one now
    return optimizer


def unwrap(optimizer: T) -> T:
    """Make an optimizer update on each call of `step` again; ignore a plain one."""
    if isinstance(optimizer, Accumulating):
        accumulation, attributes = optimizer.runai, optimizer.__dict__
        accumulation.unwatch()
        del attributes["_runai"], attributes["_step_supports_amp_scaling"]
        if accumulation.scales_itself:
            attributes["_step_supports_amp_scaling"] = True
        if accumulation.inner_step is not None:
            attributes["step"] = accumulation.inner_step
        optimizer.__class__ = plain(type(optimizer))
    return optimizer


def __getattr__(name: str) -> Callable[..., torch.optim.Optimizer]:
    """Return a constructor of an accumulating optimizer: `torch.optim`'s with `steps` first."""
    if name not in _names():
        raise AttributeError(f"torch.optim has no optimizer {name!r}")

    def construct(
        steps: int,
        *args: Any,  # noqa: ANN401 - of the optimizer
        reduction: str | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> torch.optim.Optimizer:
        inner: torch.optim.Optimizer = getattr(torch.optim, name)(*args, **kwargs)
        return Optimizer(inner, steps, reduction)

    construct.__name__ = construct.__qualname__ = name
    construct.__doc__ = f"Make a `torch.optim.{name}` that acts on every `steps`-th `step()`."
    return construct


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})


def _names() -> set[str]:
    """Return the names of this PyTorch's optimizers."""
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    return {n for n, k in kinds.items() if issubclass(k, torch.optim.Optimizer)} - {"Optimizer"}
