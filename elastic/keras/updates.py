"""Training data cut into updates, independent of the data's own batch size.

Sources are arrays, PyDatasets and streams of batches (tf.data, torch's DataLoader, generators).
Batches are tuples `(x,)`, `(x, y)` or `(x, y, weights)` of nested NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import keras
import numpy as np

Batch = tuple[Any, ...]


class Updates(Protocol):
    """Training data, one update at a time."""

    per_epoch: int
    """Updates of one epoch."""
    repeatable: bool
    """True if all updates can be read again, by any process, to resume an epoch."""

    def example(self, size: int) -> Batch:
        """Return a batch of `size` samples, to build a model."""

    def update(self, epoch: int, index: int) -> Batch:
        """Return the samples of an update; in order, unless `repeatable`."""


class ArrayUpdates:
    """Arrays in memory, in an order that follows from seed and epoch alone."""

    repeatable = True

    def __init__(
        self, arrays: Batch, size: int, *, shuffle: bool, seed: int, per_epoch: int | None = None
    ) -> None:
        self._arrays = keras.tree.map_structure(as_numpy, arrays)
        self._samples = rows(self._arrays)
        self._size = size
        self._shuffle = shuffle
        self._seed = seed
        self._updates_per_pass = -(-self._samples // size)
        self._order: tuple[int, np.ndarray[Any, Any]] | None = None
        self.per_epoch = per_epoch or self._updates_per_pass

    def example(self, size: int) -> Batch:
        """Return the first samples, repeated if there are too few."""
        return _select(self._arrays, np.arange(size) % self._samples)

    def update(self, epoch: int, index: int) -> Batch:
        """Return the samples of an update; the next pass follows the last one."""
        data_pass, position = divmod(epoch * self.per_epoch + index, self._updates_per_pass)
        indices = slice(position * self._size, (position + 1) * self._size)
        return _select(
            self._arrays, self._order_of(data_pass)[indices] if self._shuffle else indices
        )

    def _order_of(self, data_pass: int) -> np.ndarray[Any, Any]:
        if self._order is None or self._order[0] != data_pass:
            order = np.random.default_rng([self._seed, data_pass]).permutation(self._samples)
            self._order = (data_pass, order)
        return self._order[1]


class PyDatasetUpdates:
    """A `keras.utils.PyDataset` with batches joined to updates.

    The order of batches is shuffled like arrays, except the last batch, which may be smaller.

    Raises:
        ValueError: the update's size is no multiple of the batch size.
    """

    repeatable = True

    def __init__(
        self, dataset: Any, size: int, *, shuffle: bool, seed: int, per_epoch: int | None = None
    ) -> None:
        self._dataset = dataset
        self._first = _as_batch(dataset[0])
        self._size = size
        self._batches_per_update = _batches_per_update(rows(self._first), size)
        self._batches = dataset.num_batches
        self._shuffle = shuffle
        self._seed = seed
        if self._batches is None and per_epoch is None:
            raise ValueError(_UNKNOWN_LENGTH)
        self.per_epoch = per_epoch or -(-self._batches // self._batches_per_update)

    def example(self, size: int) -> Batch:
        """Return samples of the first batch, repeated where there are too few."""
        return _select(self._first, np.arange(size) % rows(self._first))

    def update(self, epoch: int, index: int) -> Batch:
        """Return the samples of an update; tell the data set when a pass over it begins."""
        first = (epoch * self.per_epoch + index) * self._batches_per_update
        if self._batches is None:
            numbers: Iterable[int] = range(first, first + self._batches_per_update)
        else:
            updates_per_pass = -(-self._batches // self._batches_per_update)
            data_pass, position = divmod(epoch * self.per_epoch + index, updates_per_pass)
            first = position * self._batches_per_update
            numbers = self._order_of(data_pass)[first : first + self._batches_per_update]
            if data_pass and position == 0:
                self._dataset.on_epoch_end()
        return _join([_as_batch(self._dataset[int(number)]) for number in numbers])

    def _order_of(self, data_pass: int) -> Sequence[int]:
        if not self._shuffle:
            return range(self._batches)
        order = np.random.default_rng([self._seed, data_pass]).permutation(self._batches - 1)
        return [*(int(number) for number in order), self._batches - 1]


class StreamUpdates:
    """A stream of batches, gathered to updates.

    Args:
        begin: opens the stream; called again at its end, and at each epoch if the stream's length
            defines the number of updates.
        size: samples of an update.
        batches: length of the stream in batches, if known.
        per_epoch: updates of an epoch; None: from the number of batches.

    Raises:
        ValueError: neither length nor `per_epoch` is known, or the batches do not divide an update.
    """

    repeatable = False

    def __init__(
        self,
        begin: Callable[[], Iterator[Any]],
        size: int,
        *,
        batches: int | None,
        per_epoch: int | None = None,
    ) -> None:
        if per_epoch is None and batches is None:
            raise ValueError(_UNKNOWN_LENGTH)
        self._begin = begin
        self._size = size
        self._per_pass: int | None = None
        self._stream = begin()
        first = next(self._stream, None)
        if first is None:
            raise ValueError("The training data yields no batch.")
        self._buffered: list[Batch] = [_as_batch(first)]
        self._first = self._buffered[0]
        self._last_position: tuple[int, int] = (0, 0)
        if per_epoch is None and batches is not None:
            per_epoch = self._per_pass = -(-batches // _batches_per_update(rows(self._first), size))
        self.per_epoch = per_epoch or 1

    def example(self, size: int) -> Batch:
        """Return samples of the first batch, repeated where there are too few."""
        return _select(self._first, np.arange(size) % rows(self._first))

    def update(self, epoch: int, index: int) -> Batch:
        """Return the next update."""
        if self._per_pass is not None and index == 0 and epoch != self._last_position[0]:
            self._stream, self._buffered = self._begin(), []
        self._last_position = (epoch, index)
        return self._gather()

    def _gather(self) -> Batch:
        """Read batches until there is an update; cut off what is beyond it."""
        reopened = False
        while sum(map(rows, self._buffered)) < self._size:
            batch = next(self._stream, None)
            if batch is not None:
                self._buffered.append(_as_batch(batch))
            elif self._buffered:
                break  # the last update of a pass has the rest
            elif reopened:
                raise ValueError(
                    "The training data has ended before the last epoch: a generator is read once. "
                    "Give one that goes on, or fewer steps_per_epoch (they count updates)."
                )
            else:
                self._stream, reopened = self._begin(), True
        joined = _join(self._buffered)
        rest = rows(joined) - self._size
        self._buffered = [_select(joined, slice(self._size, None))] if rest > 0 else []
        return _select(joined, slice(self._size)) if rest > 0 else joined


_UNKNOWN_LENGTH = (
    "How many batches the training data has is not known: give steps_per_epoch, "
    "the number of updates (global batches) of an epoch."
)


def updates_of(
    x: Any,
    y: Any,
    sample_weight: Any,
    *,
    size: int,
    shuffle: bool,
    seed: int,
    steps_per_epoch: int | None,
) -> Updates:
    """Return the data of `fit` as updates of `size` samples.

    Raises:
        TypeError: this kind of data cannot be cut exactly.
        ValueError: its length is not known, or its batches do not divide an update.
    """
    if isinstance(x, keras.utils.PyDataset):
        _expect_no_targets(y, sample_weight)
        return PyDatasetUpdates(x, size, shuffle=shuffle, seed=seed, per_epoch=steps_per_epoch)
    if hasattr(x, "cardinality") and hasattr(x, "as_numpy_iterator"):  # tf.data.Dataset
        _expect_no_targets(y, sample_weight)
        known = int(x.cardinality())
        return StreamUpdates(
            lambda: iter(x), size, batches=known if known >= 0 else None, per_epoch=steps_per_epoch
        )
    if hasattr(x, "dataset") and hasattr(x, "collate_fn"):  # torch's DataLoader
        _expect_no_targets(y, sample_weight)
        try:
            batches = len(x)
        except TypeError:
            batches = None
        return StreamUpdates(lambda: iter(x), size, batches=batches, per_epoch=steps_per_epoch)
    if isinstance(x, Iterator):
        _expect_no_targets(y, sample_weight)
        return StreamUpdates(lambda: x, size, batches=None, per_epoch=steps_per_epoch)
    leaves = keras.tree.flatten(x)
    if not leaves or not all(hasattr(leaf, "shape") and len(leaf.shape) for leaf in leaves):
        raise TypeError(
            f"fit cannot cut {type(x).__name__} into updates: give arrays or tensors, a "
            "keras.utils.PyDataset, a tf.data.Dataset, a torch DataLoader, or a generator with "
            "steps_per_epoch."
        )
    given = (x, y, sample_weight)
    arrays = given[: 3 if sample_weight is not None else 2 if y is not None else 1]
    return ArrayUpdates(arrays, size, shuffle=shuffle, seed=seed, per_epoch=steps_per_epoch)


def rows(batch: Batch) -> int:
    """Return the number of samples.

    Raises:
        ValueError: arrays have different numbers of samples.
    """
    counts = {leaf.shape[0] for leaf in keras.tree.flatten(batch) if leaf is not None}
    if len(counts) != 1:
        raise ValueError(f"The arrays differ in their number of samples: {sorted(counts)}.")
    return int(counts.pop())


def as_numpy(leaf: Any) -> Any:
    """Convert any framework's tensor, or a table, to NumPy with Keras's float type."""
    if leaf is None:
        return None
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
    array = np.asarray(leaf.to_numpy() if hasattr(leaf, "to_numpy") else leaf)
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(keras.config.floatx(), copy=False)
    return array


def _as_batch(given: Any) -> Batch:
    parts = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"A batch has x, y and sample weights at most, not {len(parts)} parts.")
    batch: Batch = keras.tree.map_structure(as_numpy, parts)
    return batch


def _batches_per_update(batch_size: int, update_size: int) -> int:
    """Return how many batches make up an update.

    Raises:
        ValueError: the batch size does not divide the update's.
    """
    if update_size % batch_size:
        raise ValueError(
            f"Batches of {batch_size} samples do not make up the global batch of {update_size}: "
            f"make them of {update_size} or of a divisor (tf.data: dataset.rebatch({update_size})),"
            " or give steps_per_epoch."
        )
    return update_size // batch_size


def _expect_no_targets(y: Any, sample_weight: Any) -> None:
    if y is not None or sample_weight is not None:
        raise ValueError("Targets and sample weights are in the data set's batches: leave out y.")


def _select(batch: Batch, indices: Any) -> Batch:
    selected: Batch = keras.tree.map_structure(lambda a: None if a is None else a[indices], batch)
    return selected


def _join(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    joined: Batch = keras.tree.map_structure(
        lambda *leaves: None if leaves[0] is None else np.concatenate(leaves), *batches
    )
    return joined
