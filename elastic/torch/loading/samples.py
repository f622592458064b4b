"""A data set in one order at any number of ranks, each sample with its own random numbers.

Objects of these classes are sent to loading processes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count, islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data._utils import worker as loading_process
from torch.utils.data._utils.worker import WorkerInfo

from runai.elastic.torch.loading.position import Divider, Part
from runai.elastic.torch.loading.randomness import key, seed_everything

T = TypeVar("T")

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

    def shown_to_script(self, info: WorkerInfo) -> WorkerInfo:
        """Return a loading process's info with the script's own data set in it."""
        script = cast("Dataset[Any]", self._dataset)
        return WorkerInfo(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=script)


class Portion(NamedTuple):
    """A micro-batch of a stream, with what only its reader knows."""

    batch: Any
    part: int
    """Which of this rank's parts of the update it is."""
    total: int
    ends_epoch: bool
    first: int
    """Digest of the epoch's first sample, for ranks to compare; 0: not to be compared."""


class Stream(IterableDataset[Portion]):
    """A data set without indices: each rank reads all of it and keeps its part.

    It must come in the same order on every rank and at every start; it may have a `set_epoch`. Each
    loading process reads all of it too, and collates every so manieth micro-batch. So the data set
    is shown one loading process: one that divides itself by `get_worker_info()`, as PyTorch's
    documentation has it, gives all of itself.
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
        self._first = 0

    def shown_to_script(self, _: WorkerInfo) -> WorkerInfo:
        """Return the info of the only loading process, whose seed is the epoch's."""
        seed = key(self._seed, _ORDER, self._epoch)
        script = cast("Dataset[Any]", self._dataset)
        return WorkerInfo(id=0, num_workers=1, seed=seed, dataset=script)

    def __iter__(self) -> Iterator[Portion]:
        """Give this rank's micro-batches; in a loading process every so manieth."""
        worker = get_worker_info()
        mine, processes = (0, 1) if worker is None else (worker.id, worker.num_workers)
        number = count()
        for window, ends_epoch in self._windows():
            for place, part in enumerate(self._divider.parts(len(window))):
                if next(number) % processes == mine:
                    batch = self._collate(_slice(window, part))
                    yield Portion(batch, place, len(window), ends_epoch, self._first)

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
        info = get_worker_info()
        shown = info and self.shown_to_script(info)
        # A generator runs its first lines, where it divides itself, when it is first asked.
        samples = _showing(shown, lambda: iter(self._dataset))
        for index in count():
            if self._augment:
                seed_everything(key(self._seed, _SAMPLE, self._epoch, index))
            try:
                sample = _showing(shown, lambda: next(samples))
            except StopIteration:
                return
            if index == 0 and self._augment:
                self._first = _digest(sample)
            yield sample


class WorkerInit:
    """A script's `worker_init_fn`, which finds its own data set in `get_worker_info()`."""

    def __init__(self, function: Callable[[int], object]) -> None:
        """Wrap the function."""
        self._function = function

    def __call__(self, _: int) -> None:
        """Call the function in a loading process that has just begun."""
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, Samples | Stream)
        shown = info.dataset.shown_to_script(info)
        _showing(shown, lambda: self._function(shown.id))


def _showing(info: WorkerInfo | None, call: Callable[[], T]) -> T:
    """Call script code for which `get_worker_info()` returns `info`.

    PyTorch has no public way to set it.
    """
    before = loading_process._worker_info  # noqa: SLF001
    loading_process._worker_info = info  # noqa: SLF001
    try:
        return call()
    finally:
        loading_process._worker_info = before  # noqa: SLF001


def _digest(sample: object) -> int:
    """Return 62 bits of a sample's tensors, arrays, numbers and strings, not of other objects."""
    found = hashlib.blake2b(digest_size=8)

    def add(part: object) -> None:
        if isinstance(part, Mapping):
            add([*part.items()])
        elif isinstance(part, list | tuple):
            for inner in part:
                add(inner)
        elif isinstance(part, Tensor) and part.layout == torch.strided and not part.is_quantized:
            found.update(part.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, bool | int | float | str | bytes):
            found.update(repr(part).encode())
        elif not getattr(getattr(part, "dtype", None), "hasobject", False):
            with contextlib.suppress(TypeError):
                found.update(memoryview(part))  # type: ignore[arg-type]  # an array

    add(sample)
    return int.from_bytes(found.digest()) >> 2


def _slice(window: list[Any], part: Part) -> list[Any]:
    return window[part.offset : part.offset + max(1, part.size)]


def size_of(dataset: object) -> int | None:
    """Return how many samples a data set has; None for one that is only iterated over."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    assert isinstance(dataset, Sized)
    return len(dataset)
