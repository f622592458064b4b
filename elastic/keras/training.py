"""Position of a Keras training (epoch, update), and an update's micro-batches with weights.

Independent of back ends: `steps` runs the micro-batches on each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

import runai.elastic
from runai.elastic.batching import plan_batches, split
from runai.elastic.keras.updates import Batch, Updates, rows

CountFunction = Callable[[Any, Any, Any], Any]
"""(x, y, sample weights) -> number of values in the loss's mean."""


@dataclass(frozen=True)
class MicroBatch:
    """A part of an update for one step."""

    batch: Batch
    weight: float
    """Weight of this part's mean in the update's mean."""
    last: bool
    """True if the weights change after it."""
    sharded: bool
    """True if the devices share its samples; else each computes all of them."""


def cut(samples: int, limit: int, devices: int) -> list[tuple[int, bool]]:
    """Divide an update among the devices of one process; return sizes, and True if shared.

    Devices share a part evenly; a rest of fewer samples than devices is computed by each device.

    >>> cut(257, 64, 4)
    [(256, True), (1, False)]
    >>> cut(100, 32, 1)
    [(25, True), (25, True), (25, True), (25, True)]
    """
    even, rest = divmod(samples, devices)
    pieces = [(size * devices, True) for size in _sizes(even, limit)]
    return pieces + [(size, False) for size in _sizes(rest, limit)]


def _sizes(samples: int, limit: int) -> tuple[int, ...]:
    return split(samples, -(-samples // limit)) if samples else ()


class Training:
    """The position of a model's training, and its next update."""

    def __init__(self, *, count: CountFunction | None, seed: int) -> None:
        self.count = count
        self.seed = seed
        self.epoch = 0
        self.done = 0
        """Completed updates of this epoch."""
        self.passed_over = False
        """True if the last update was skipped, as the checkpoint includes it."""
        self._resume_position: tuple[int, int] | None = None
        self._next_index = 0
        self._source: Updates | None = None
        self._class_weight: Mapping[int, float] | None = None

    def begin(self, source: Updates, class_weight: Mapping[int, float] | None) -> None:
        """Start a fit with its data."""
        self._source, self._class_weight = source, class_weight
        self._resume_position = None

    @property
    def source(self) -> Updates:
        """The data of this fit."""
        assert self._source is not None, "no fit has begun"
        return self._source

    def example(self, size: int) -> Batch:
        """Return samples in the model's input format."""
        return self._with_class_weights(self.source.example(size))

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch from its first update, or from a checkpoint's position."""
        self.epoch, self.done, self._next_index = epoch, 0, 0
        if self._resume_position is not None and self._resume_position[0] == epoch:
            self.done = self._resume_position[1]
        self._resume_position = None

    def resume(self, epoch: int, done: int) -> None:
        """Skip the first `done` updates of an epoch, without computing them."""
        self._resume_position = (epoch, done)

    def next_update(self, devices: int, ranks: int = 1, rank: int = 0) -> list[MicroBatch]:
        """Return this process's parts of the next update; none for a skipped one.

        A rank without samples gets one of weight 0, so that collectives stay matched.
        """
        index = self._next_index
        self._next_index += 1
        skipped = self.passed_over = index < self.done
        if skipped and self.source.repeatable:
            return []
        batch = self.source.update(self.epoch, index)
        if skipped:
            return []
        self.done = index + 1
        return list(self._pieces(self._with_class_weights(batch), devices, ranks, rank))

    def _pieces(self, batch: Batch, devices: int, ranks: int, rank: int) -> Iterator[MicroBatch]:
        """Yield this process's micro-batches of an update, with their weights."""
        max_gpu_batch = runai.elastic.max_gpu_batch_size
        plan = plan_batches(rows(batch), max_gpu_batch * devices, ranks)
        start = plan.offsets[rank]
        total_items = self._count_items(batch)
        share = plan.shares[rank]
        if not share:
            yield MicroBatch(_slice_rows(batch, 0, 1), 0.0, last=True, sharded=False)
        pieces = cut(share, max_gpu_batch, devices)
        for count, (size, sharded) in enumerate(pieces, start=1):
            piece = _slice_rows(batch, start, start + size)
            start += size
            weight = self._count_items(piece) / total_items if total_items else 0.0
            yield MicroBatch(piece, weight, last=count == len(pieces), sharded=sharded)

    def _count_items(self, batch: Batch) -> float:
        """Return the number of items in the mean of a batch's loss."""
        if self.count is None:
            return rows(batch)
        return float(self.count(*batch, *(None,) * (3 - len(batch))))

    def _with_class_weights(self, batch: Batch) -> Batch:
        """Return a batch with the weight of each sample's class, if weights are set."""
        if self._class_weight is None:
            return batch
        if len(batch) != 2 or keras.tree.is_nested(batch[1]):
            raise ValueError(
                "class_weight needs one array of targets, and excludes sample_weight: "
                "give the weight of each sample as sample_weight."
            )
        labels = np.asarray(batch[1])
        if labels.ndim > 1:
            labels = labels.argmax(-1) if labels.shape[-1] > 1 else labels[..., 0]
        weights = [self._class_weight.get(int(label), 1.0) for label in np.round(labels).ravel()]
        return (*batch, np.asarray(weights, keras.config.floatx()).reshape(labels.shape))


def training_of(model: Any) -> Training:
    """Return an elastic model's training.

    Raises:
        TypeError: the model is not elastic.
    """
    if not hasattr(model, "__runai__"):
        raise TypeError(
            "The model is not elastic: runai.elastic.keras.models.Model(model) makes it."
        )
    training: Training = model.__runai__.training
    return training


class EpochCallback(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """A callback that passes the epoch to the training."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Start the epoch."""
        self._training.begin_epoch(epoch)


def _slice_rows(batch: Batch, start: int, stop: int) -> Batch:
    piece: Batch = keras.tree.map_structure(lambda a: None if a is None else a[start:stop], batch)
    return piece
