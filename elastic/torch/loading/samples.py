"""Data sets with one order for any number of ranks, and random numbers per sample.

The objects are pickled to the data loader's processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count, islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data._utils import worker as loading_process
from torch.utils.data._utils.worker import WorkerInfo

from runai.elastic.torch.loading.position import Divider, SampleRange
from runai.elastic.torch.loading.randomness import key, seed_everything

T = TypeVar("T")

# Seed domains of orders and of samples: any two different numbers.
_ORDER, _SAMPLE = 1, 2

SamplePlace = tuple[int, int]
"""Epoch and index of a sample."""


class _Indexed(Protocol):
    def __getitem__(self, index: int, /) -> Any: ...  # noqa: ANN401 - any sample


def order_of(size: int, *, seed: int, epoch: int, shuffle: bool) -> torch.Tensor:
    """Return the indices of all samples in the order of an epoch."""
    if not shuffle:
        return torch.arange(size)
    generator = torch.Generator().manual_seed(key(seed, _ORDER, epoch))
    return torch.randperm(size, generator=generator)


class Samples(Dataset[Any]):
    """A map-style data set, indexed by `(epoch, index)`."""

    def __init__(self, dataset: _Indexed, *, seed: int, augment: bool) -> None:
        """Wrap a data set; `augment`: whether loading a sample uses random numbers."""
        self._dataset, self._seed = dataset, seed
        # Rows of a tensor use no random numbers.
        self._augment = augment and not isinstance(dataset, TensorDataset)
        self._load_many: Callable[[list[int]], Sequence[Any]] | None = None
        if not self._augment:
            self._load_many = getattr(dataset, "__getitems__", None)

    def __getitem__(self, where: SamplePlace) -> Any:  # noqa: ANN401
        """Load a sample: equal at any number of ranks and loading processes."""
        epoch, index = where
        if self._augment:
            seed_everything(key(self._seed, _SAMPLE, epoch, index))
        return self._dataset[index]

    def __getitems__(self, wheres: Sequence[SamplePlace]) -> Sequence[Any]:
        """Load the samples of a micro-batch, in one call if the data set supports it."""
        if self._load_many is not None:
            return self._load_many([index for _, index in wheres])
        if not self._augment:
            return [self._dataset[index] for _, index in wheres]
        return [self[where] for where in wheres]

    def script_worker_info(self, info: WorkerInfo) -> WorkerInfo:
        """Return a loading process's info with the script's own data set in it."""
        script = cast("Dataset[Any]", self._dataset)
        return WorkerInfo(id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=script)


class Portion(NamedTuple):
    """A micro-batch of a stream, with its reader's view of the update."""

    batch: Any
    part: int
    """Number of the part among this rank's parts of the update."""
    total: int
    ends_epoch: bool
    first: int
    """Digest of the epoch's first sample, compared between ranks; 0: not compared."""


class SampleStream(IterableDataset[Portion]):
    """An iterable data set: each rank reads all of it and uses its part.

    Its order must be equal on every rank and at every start; it may have a `set_epoch`. Each of n
    loading processes reads all of it, too, and collates every n-th micro-batch. So
    `get_worker_info()` shows the data set a single process: one that divides itself by it, as in
    PyTorch's documentation, then yields all samples.
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
        """Configure the reading of one epoch, from its `skip`-th sample on."""
        self._dataset, self._divider, self._collate = dataset, divider, collate
        self._global_batch, self._skip, self._drop_last = global_batch, skip, drop_last
        self._epoch, self._seed, self._augment = epoch, seed, augment
        self._first_digest = 0

    def script_worker_info(self, _: WorkerInfo) -> WorkerInfo:
        """Return the info of a single loading process, with the epoch's seed."""
        seed = key(self._seed, _ORDER, self._epoch)
        script = cast("Dataset[Any]", self._dataset)
        return WorkerInfo(id=0, num_workers=1, seed=seed, dataset=script)

    def __iter__(self) -> Iterator[Portion]:
        """Yield this rank's micro-batches; in one of n loading processes every n-th."""
        worker = get_worker_info()
        process, processes = (0, 1) if worker is None else (worker.id, worker.num_workers)
        number = count()
        for window, ends_epoch in self._windows():
            for place, part in enumerate(self._divider.parts(len(window))):
                if next(number) % processes == process:
                    batch = self._collate(_samples_of(window, part))
                    yield Portion(batch, place, len(window), ends_epoch, self._first_digest)

    def _windows(self) -> Iterator[tuple[list[Any], bool]]:
        """Yield each update's samples, and True for the epoch's last update."""
        samples = islice(self._samples(), self._skip, None)
        window = list(islice(samples, self._global_batch))
        while window:
            next_window = list(islice(samples, self._global_batch))
            is_next_whole = len(next_window) == self._global_batch
            is_last = not next_window or (self._drop_last and not is_next_whole)
            if len(window) == self._global_batch or not self._drop_last:
                yield window, is_last
            window = next_window

    def _samples(self) -> Iterator[Any]:
        """Yield all samples of the epoch, with random numbers seeded for each."""
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(self._epoch)
        info = get_worker_info()
        script_info = info and self.script_worker_info(info)
        # A generator divides itself in its first lines, which run at the first `next`.
        samples = _with_worker_info(script_info, lambda: iter(self._dataset))
        for index in count():
            if self._augment:
                seed_everything(key(self._seed, _SAMPLE, self._epoch, index))
            try:
                sample = _with_worker_info(script_info, lambda: next(samples))
            except StopIteration:
                return
            if index == 0 and self._augment:
                self._first_digest = _digest(sample)
            yield sample


class WorkerInit:
    """A loading process's start: it outlives SIGTERM, and the script's `worker_init_fn` is called.

    The function finds its own data set in `get_worker_info()`.
    """

    def __init__(self, function: Callable[[int], object] | None) -> None:
        """Wrap the script's function, if there is one."""
        self._function = function

    def __call__(self, _: int) -> None:
        """Prepare a new loading process."""
        _outlive_sigterm()
        if (function := self._function) is None:
            return
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, Samples | SampleStream)
        script_info = info.dataset.script_worker_info(info)
        _with_worker_info(script_info, lambda: function(script_info.id))


def _outlive_sigterm() -> None:
    """Ignore SIGTERM until the parent has ended, which needs samples for its last update.

    By a handler, which a program that the data set starts does not inherit.
    """
    parent = os.getppid()

    def end_after_parent(number: int, _frame: object) -> None:
        if os.getppid() != parent:
            os._exit(128 + number)

    signal.signal(signal.SIGTERM, end_after_parent)
    signal.siginterrupt(signal.SIGTERM, False)


def _with_worker_info(info: WorkerInfo | None, call: Callable[[], T]) -> T:
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
    digest = hashlib.blake2b(digest_size=8)

    def add(part: object) -> None:
        if isinstance(part, Mapping):
            add([*part.items()])
        elif isinstance(part, list | tuple):
            for inner in part:
                add(inner)
        elif isinstance(part, Tensor) and part.layout == torch.strided and not part.is_quantized:
            digest.update(part.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, bool | int | float | str | bytes):
            digest.update(repr(part).encode())
        elif not getattr(getattr(part, "dtype", None), "hasobject", False):
            with contextlib.suppress(TypeError):
                digest.update(memoryview(part))  # type: ignore[arg-type]  # an array

    add(sample)
    return int.from_bytes(digest.digest()) >> 2


def _samples_of(window: list[Any], part: SampleRange) -> list[Any]:
    """Return a part's samples; a placeholder gets the first one at its offset."""
    return window[part.offset : part.offset + max(1, part.size)]


def size_of(dataset: object) -> int | None:
    """Return the number of samples of a data set; None for an iterable one."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    assert isinstance(dataset, Sized)
    return len(dataset)
