"""A data set as an elastic job reads it: in one order, each sample with its random numbers.

Knows the order of an epoch, and how samples are loaded in whatever process loads them; not who
computes them (`position`). Used by `loading`; objects of here travel to loading processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import count, islice
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

from runai.elastic.torch.position import Divider, Part
from runai.elastic.torch.randomness import key, seed_everything

__all__ = ["Portion", "Samples", "Stream", "Where", "order_of", "size_of"]

# Where the random numbers of orders and of samples begin; any two numbers that differ.
_ORDER, _SAMPLE = 1, 2

Where = tuple[int, int]
"""Epoch and index of a sample."""


class _Indexed(Protocol):
    def __getitem__(self, index: int, /) -> Any: ...  # noqa: ANN401 - whatever a sample is


def order_of(size: int, *, seed: int, epoch: int, shuffle: bool) -> torch.Tensor:
    """Return the indices of all samples in the order of an epoch."""
    if not shuffle:
        return torch.arange(size)
    generator = torch.Generator().manual_seed(key(seed, _ORDER, epoch))
    return torch.randperm(size, generator=generator)


class Samples(Dataset[Any]):
    """A data set with indices, asked for `(epoch, index)`."""

    def __init__(self, dataset: _Indexed, *, seed: int, augment: bool) -> None:
        """Wrap a data set; `augment`: whether its samples have random numbers."""
        self._dataset, self._seed = dataset, seed
        # A tensor's rows are what they are: nothing to seed for.
        self._augment = augment and not isinstance(dataset, TensorDataset)
        self._several: Callable[[list[int]], Sequence[Any]] | None = None
        if not self._augment:
            self._several = getattr(dataset, "__getitems__", None)

    def __getitem__(self, where: Where) -> Any:  # noqa: ANN401
        """Load a sample; the same one at any number of ranks and loading processes."""
        epoch, index = where
        if self._augment:
            seed_everything(key(self._seed, _SAMPLE, epoch, index))
        return self._dataset[index]

    def __getitems__(self, wheres: Sequence[Where]) -> Sequence[Any]:
        """Load the samples of a micro-batch, at once where the data set can."""
        if self._several is not None:
            return self._several([index for _, index in wheres])
        if not self._augment:
            return [self._dataset[index] for _, index in wheres]
        return [self[where] for where in wheres]


class Portion(NamedTuple):
    """A micro-batch of a stream, with what only its reader knows."""

    batch: Any
    part: int
    """Which of this rank's parts of the update it is."""
    total: int
    ends_epoch: bool


class Stream(IterableDataset[Portion]):
    """A data set without indices: each rank reads all of it and keeps its part.

    It must come in the same order on every rank and at every start; it may have a `set_epoch`. Each
    loading process reads all of it too, and collates every so manieth micro-batch.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        divider: Divider,
        collate: Callable[[list[Any]], Any],
        *,
        global_batch: int,
        skip: int,
        epoch: int,
        seed: int,
        augment: bool,
        drop_last: bool,
    ) -> None:
        """Read one epoch from its `skip`-th sample on."""
        self._dataset, self._divider, self._collate = dataset, divider, collate
        self._global_batch, self._skip, self._drop_last = global_batch, skip, drop_last
        self._epoch, self._seed, self._augment = epoch, seed, augment

    def __iter__(self) -> Iterator[Portion]:
        """Give this rank's micro-batches; in a loading process every so manieth."""
        worker = get_worker_info()
        mine, processes = (0, 1) if worker is None else (worker.id, worker.num_workers)
        number = count()
        for window, ends_epoch in self._windows():
            for place, part in enumerate(self._divider.parts(len(window))):
                if next(number) % processes == mine:
                    batch = self._collate(_slice(window, part))
                    yield Portion(batch, place, len(window), ends_epoch)

    def _windows(self) -> Iterator[tuple[list[Any], bool]]:
        """Give the samples of each update, and whether it is the epoch's last."""
        samples = islice(self._samples(), self._skip, None)
        window = list(islice(samples, self._global_batch))
        while window:
            after = list(islice(samples, self._global_batch))
            enough = len(after) == self._global_batch
            if len(window) == self._global_batch or not self._drop_last:
                yield window, not after or (self._drop_last and not enough)
            window = after

    def _samples(self) -> Iterator[Any]:
        if callable(begin := getattr(self._dataset, "set_epoch", None)):
            begin(self._epoch)
        samples = iter(self._dataset)
        for index in count():
            if self._augment:
                seed_everything(key(self._seed, _SAMPLE, self._epoch, index))
            try:
                yield next(samples)
            except StopIteration:
                return


def _slice(window: list[Any], part: Part) -> list[Any]:
    return window[part.offset : part.offset + max(1, part.size)]


def size_of(dataset: object) -> int | None:
    """Return how many samples a data set has; None for one that is only iterated over."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    assert isinstance(dataset, Sized)
    return len(dataset)
