"""Running statistics of normalization layers, folded in the order of slices (bitwise).

Each slice's statistics are collected separately; the running ones stay unchanged during an update,
and at its end all slices are folded into them in a fixed order, independent of the ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from runai.elastic.torch.loading.position import SampleRange
from runai.elastic.torch.parallel import broadcast_tensors

_warned = False
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def running_layers(module: nn.Module) -> list[_NormBase]:
    """Return a model's layers with running statistics."""
    return [
        layer
        for layer in module.modules()
        if isinstance(layer, _NormBase) and layer.running_mean is not None
    ]


def warn_of_ghost_batches() -> None:
    """Warn once per process that the plan influences the layers' statistics."""
    global _warned  # noqa: PLW0603 - once a process
    if not _warned:
        _warned = True
        warnings.warn(
            "BatchNorm normalizes each micro-batch by itself, so that this model's weights depend "
            "on the plan, and thus on the number of GPUs. elastic.Job(…, bitwise=True) makes them "
            "the same at any number; GroupNorm and LayerNorm do not need it.",
            stacklevel=3,
        )


@dataclass(frozen=True, slots=True)
class _CallStatistics:
    """The statistics of one call of a layer, and the layer's index."""

    layer: int
    mean: Tensor
    variance: Tensor


class RunningStatistics:
    """The statistics of a model's layers by slice, until they are folded at the boundary."""

    def __init__(self, module: nn.Module) -> None:
        """Register hooks on the layers of a model; `remove` removes them.

        Raises:
            TypeError: if a layer is a SyncBatchNorm.
        """
        self._layers = running_layers(module)
        if any(isinstance(layer, nn.SyncBatchNorm) for layer in self._layers):
            raise TypeError(
                "SyncBatchNorm averages over the ranks of the moment, so that its bits depend on "
                "their number: use BatchNorm with bitwise=True, its slices are always the same."
            )
        self._handles = [
            handle
            for place, layer in enumerate(self._layers)
            for handle in (
                layer.register_forward_pre_hook(self._swap_buffers),
                layer.register_forward_hook(self._collecting_hook(place)),
            )
        ]
        self._original_buffers: tuple[list[Any], float | None] | None = None
        self._calls: list[_CallStatistics] | None = None
        """Calls of the slice in its forward pass; None outside of one."""
        self._slices: list[list[_CallStatistics]] = []
        self._placeholder_calls: list[_CallStatistics] = []

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def begin(self, part: SampleRange) -> None:
        """Start collecting a slice's statistics."""
        self._calls = []
        if part.size:
            self._slices.append(self._calls)
        else:
            self._placeholder_calls = self._calls

    def end(self) -> None:
        """Stop collecting: later calls, such as an evaluation, do not count."""
        self._calls = None

    def forget(self) -> None:
        """Discard the collected statistics."""
        self._calls, self._slices, self._placeholder_calls = None, [], []

    def fold(self, slices: Sequence[int], rank: int) -> None:
        """Fold the statistics of all slices into the running ones, in their order.

        Args:
            slices: number of slices of each rank.
            rank: of this process.

        Raises:
            RuntimeError: if slices called different layers.
        """
        pattern_calls = (self._slices or [self._placeholder_calls])[0]
        if not pattern_calls:
            return
        pattern = [call.layer for call in pattern_calls]
        if any([call.layer for call in calls] != pattern for calls in self._slices):
            raise RuntimeError(
                "The model calls its normalization layers in another order for different slices: "
                "their running statistics cannot be folded (bitwise=True)."
            )
        template = _flat(pattern_calls)
        for source, count in enumerate(slices):
            table = template.new_empty(count, template.numel())
            if source == rank and count:
                torch.stack([_flat(calls) for calls in self._slices], out=table)
            if len(slices) > 1 and count:
                broadcast_tensors([table], source)
            for row in table:
                self._fold_slice(row, pattern_calls)

    def _fold_slice(self, row: Tensor, pattern_calls: list[_CallStatistics]) -> None:
        """Fold one slice's statistics into the layers' running ones."""
        values = iter(row.split([call.mean.numel() for call in pattern_calls for _ in range(2)]))
        for call in pattern_calls:
            layer = self._layers[call.layer]
            mean, variance, batches = (getattr(layer, name) for name in _BUFFERS)
            batches += 1
            # Without a momentum the running statistics are the average over all batches.
            momentum = 1 / float(batches) if layer.momentum is None else layer.momentum
            for running in (mean, variance):
                running.mul_(1 - momentum).add_(next(values).to(running.dtype), alpha=momentum)

    def _swap_buffers(self, layer: nn.Module, _: object) -> None:
        """Replace a layer's buffers by temporary ones, for this call's statistics."""
        if self._calls is None or not layer.training:
            return
        assert isinstance(layer, _NormBase)
        self._original_buffers = [getattr(layer, name) for name in _BUFFERS], layer.momentum
        for name in _BUFFERS:
            setattr(layer, name, torch.zeros_like(getattr(layer, name)))
        layer.momentum = 1.0

    def _collecting_hook(self, place: int) -> Any:  # noqa: ANN401 - a forward hook
        """Return the hook that collects a call's statistics, and restores the buffers."""

        def collect(layer: nn.Module, *_: object) -> None:
            if self._original_buffers is None:
                return
            assert isinstance(layer, _NormBase) and self._calls is not None  # noqa: PT018
            mean, variance = layer.running_mean, layer.running_var
            assert mean is not None and variance is not None  # noqa: PT018
            self._calls.append(_CallStatistics(place, mean, variance))
            (buffers, layer.momentum), self._original_buffers = self._original_buffers, None
            for name, buffer in zip(_BUFFERS, buffers, strict=True):
                setattr(layer, name, buffer)

        return collect


def _flat(calls: list[_CallStatistics]) -> Tensor:
    return torch.cat([part.reshape(-1) for call in calls for part in (call.mean, call.variance)])
