"""The samples that a loader reads for ranks that do not run: data sets, and a job's position.

Simulates one rank's position and share as a job has them, without training. Tests of the loader
cover many ranks and resizes that real processes would take minutes for.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from runai.elastic import torch as elastic
from runai.elastic.torch.loading.position import MicroBatch, Position
from runai.elastic.torch.parallel import RankDivision

SAMPLES = 46


class Reading:
    """One of several ranks, at a position."""

    seed = 5
    first_sample = 0

    def __init__(
        self,
        global_batch: int,
        gpu_batch: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        position: Position | None = None,
    ) -> None:
        self.global_batch = global_batch
        self.position = position or Position()
        self.division = RankDivision(gpu_batch, rank, ranks)
        self.formation = object()
        self.begun: list[MicroBatch] = []

    @property
    def epoch(self) -> int:
        return self.position.epoch

    def begin(self, micro: MicroBatch) -> None:
        self.begun.append(micro)

    def expect_processed(self, micro: MicroBatch) -> None:
        if micro.last:
            self.position = self.position.after(micro.total, ends_epoch=micro.ends_epoch)

    def total(self, number: float) -> float:
        return number


class Indexed(Dataset[int]):
    """Samples that are their own index."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index


class Iterated(IterableDataset[int]):
    """The same without indices."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __iter__(self) -> Any:
        return iter(range(self._size))


def _augmented(index: int) -> tuple[int, float, float, float]:
    return index, random.random(), float(np.random.random()), torch.rand(()).item()  # noqa: NPY002


class Randomized(Indexed):
    """Samples that are augmented with all three generators."""

    def __getitem__(self, index: int) -> Any:
        return _augmented(index)


class RandomStream(Iterated):
    """The same without indices."""

    def __iter__(self) -> Any:
        return map(_augmented, range(self._size))


class SelfSharded(Iterated):
    """Samples divided by loading process where they are read, as PyTorch's documentation does."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        mine, processes = (info.id, info.num_workers) if info else (0, 1)
        yield from range(mine, self._size, processes)


class EagerlySharded(SelfSharded):
    """The same by an `__iter__` that is no generator."""

    def __iter__(self) -> Any:
        return iter(list(super().__iter__()))


class LazilySharded(Iterated):
    """The same, but each sample asks for its loading process anew."""

    def __iter__(self) -> Any:
        for sample in range(self._size):
            info = get_worker_info()
            if info is None or sample % info.num_workers == info.id:
                yield sample


class InitSharded(Iterated):
    """Samples divided by `worker_init_fn`, the other way that PyTorch's documentation has."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.start, self.step = 0, 1

    def __iter__(self) -> Any:
        return iter(range(self.start, self._size, self.step))

    @staticmethod
    def worker_init_fn(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, InitSharded)
        info.dataset.start, info.dataset.step = worker, info.num_workers


class Opened(Indexed):
    """A data set with indices that is opened in each loading process."""

    opened = False

    def __getitem__(self, index: int) -> int:
        assert self.opened or get_worker_info() is None
        return index

    @staticmethod
    def worker_init_fn(_: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, Opened)
        info.dataset.opened = True


class ShuffledByWorkerSeed(Iterated):
    """Samples in the order of the seed that PyTorch gives a loading process."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        order = list(range(self._size))
        random.Random(info.seed if info else 0).shuffle(order)
        return iter(order)


def load_epoch(rank: int, _: int, kind: str, ranks: int, num_workers: int) -> list[Any]:
    """Return the samples of an epoch, read by ranks that take their turns."""
    dataset = globals()[kind](SAMPLES)
    of_ranks: list[dict[int, list[Any]]] = []
    # Forked: another server of forks would have to import PyTorch first.
    options: dict[str, Any] = {"num_workers": num_workers}
    if num_workers:
        options["multiprocessing_context"] = "fork"
        options["worker_init_fn"] = getattr(dataset, "worker_init_fn", None)
    for reader in range(ranks):
        reading = Reading(10, 3, rank=reader, ranks=ranks)
        updates: dict[int, list[Any]] = {}
        loader = elastic.DataLoader(dataset, job=reading, collate_fn=list, **options)
        for batch in loader:
            if reading.begun[-1].part.size:
                updates.setdefault(reading.position.update, []).extend(batch)
        of_ranks.append(updates)
    return [
        sample
        for update in sorted(of_ranks[0])
        for updates in of_ranks
        for sample in updates.get(update, [])
    ]


class Stuck(Indexed):
    """Samples of which all but the first ones are loaded for ever."""

    def __getitem__(self, index: int) -> int:
        while index >= 4:
            time.sleep(1000)
        return index


def load_epoch_after_sigterm(rank: int, _: int, kind: str) -> tuple[list[int], list[int]]:
    """Return the samples of an epoch whose loading processes get SIGTERM, and their exit codes."""
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = elastic.DataLoader(
        globals()[kind](SAMPLES), job=Reading(10, 3, rank=rank), collate_fn=list, **options
    )
    samples: list[int] = []
    processes: Any = []
    for number, batch in enumerate(loader):
        if number == 1:  # each of the two has loaded one
            processes = multiprocessing.active_children()
            for process in processes:
                os.kill(process.pid, signal.SIGTERM)
        samples += batch
    return samples, [process.exitcode for process in processes]


def break_out_of_stuck_loading() -> None:
    """Read the first batches of a data set that is stuck then, and end."""
    for _ in elastic.DataLoader(Stuck(SAMPLES), job=Reading(10, 3), shuffle=False, num_workers=1):
        break
    print("broke", flush=True)
