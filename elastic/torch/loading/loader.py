"""A rank's micro-batches, with each sample once an epoch at any number of ranks.

PyTorch's loader reads an epoch update by update. The job has the position, so a loader has no state
to save.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, Protocol, cast

import torch
from torch.utils import data
from torch.utils.data import default_collate

from runai.elastic.torch.loading.position import (
    Divider,
    MicroBatch,
    Position,
    UpdateAbandoned,
    micro_batches,
)
from runai.elastic.torch.loading.samples import (
    Portion,
    SamplePlace,
    Samples,
    SampleStream,
    WorkerInit,
    order_of,
    size_of,
)

_PLANNED_OPTIONS = {
    "batch_size": "the plan decides it (runai.elastic.torch.init)",
    "sampler": "the order is a function of the job's seed and the epoch",
    "batch_sampler": "the plan decides which rank has which samples",
    "generator": "random numbers come from the job's seed",
}

Update = tuple[MicroBatch, ...]
Batch = Any  # the result of collate_fn


class LoadingJob(Protocol):
    """A job's interface for loaders: its position, and this rank's part of an update."""

    seed: int
    global_batch: int
    position: Position
    formation: object
    """A new object whenever prefetched batches are no longer this rank's next ones."""
    first_sample: int
    """Digest of the first sample of an iterable data set's epoch; 0: none."""

    @property
    def epoch(self) -> int:
        """The current epoch."""

    @property
    def division(self) -> Divider:
        """The current division of an update."""

    def begin(self, micro: MicroBatch) -> None:
        """Prepare for the micro-batch that the script gets next."""

    def expect_processed(self, micro: MicroBatch) -> None:
        """Check that the script has processed it."""

    def total(self, number: float) -> float:
        """Sum a number over all ranks.

        Raises:
            UpdateAbandoned: if a rank is gone, and the job was restored to another position.
        """


_default_jobs: list[LoadingJob] = []  # the last job, the default of loaders


def set_default_job(job: LoadingJob) -> None:
    """Set the job that loaders without a `job` use."""
    _default_jobs[:] = [job]


class DataLoader:
    """An iterable of this rank's micro-batches, from the job's position on.

    The order of an epoch and the random numbers of each sample depend on the job's seed and the
    epoch only. After a resize the loader continues with the new rank's part of the next update.
    """

    def __init__(
        self,
        dataset: data.Dataset[Any],
        *,
        shuffle: bool = True,
        num_workers: int = 0,
        drop_last: bool = False,
        count: Callable[[Batch], int] | None = None,
        augment: bool = True,
        collate_fn: Callable[[list[Any]], Batch] | None = None,
        job: LoadingJob | None = None,
        **options: Any,  # noqa: ANN401 - passed on unchanged
    ) -> None:
        """Configure the loader; nothing is read yet.

        Args:
            dataset: with indices (shuffled), or iterable (in its own order).
            shuffle: whether each epoch has another order.
            num_workers: processes that load samples.
            drop_last: leave out the samples after the last whole update, the same for any ranks.
            count: returns the number of items in the mean of a micro-batch's loss, e.g. tokens
                without padding; None: samples. An update is then loaded before it starts.
            augment: whether loading uses random numbers (PyTorch's, Python's, NumPy's), which are
                then seeded for each sample, in 15 microseconds.
            collate_fn: combines samples to a micro-batch.
            job: with the position; None: the last job.
            options: of `torch.utils.data.DataLoader`, such as `pin_memory`.

        Raises:
            TypeError: if the plan determines an option.
        """
        for name in options.keys() & _PLANNED_OPTIONS:
            raise TypeError(f"elastic.DataLoader takes no {name}: {_PLANNED_OPTIONS[name]}.")
        self.dataset, self.shuffle, self.drop_last = dataset, shuffle, drop_last
        self._count, self._augment, self._job = count, augment, job
        self._collate: Callable[[list[Any]], Batch] = collate_fn or default_collate
        self._options = options | {"num_workers": num_workers}
        self._options["worker_init_fn"] = WorkerInit(options.get("worker_init_fn"))
        self._size = size_of(dataset)
        self._inner: data.DataLoader[Any] | None = None

    @property
    def job(self) -> LoadingJob:
        """The job with this loader's position.

        Raises:
            RuntimeError: if there is none.
        """
        if self._job is None:
            if not _default_jobs:
                raise RuntimeError(
                    "There is no job yet: make an elastic.Job before iterating the loader."
                )
            self._job = _default_jobs[0]
        return self._job

    def __len__(self) -> int:
        """Return the number of remaining micro-batches of this epoch, by the current plan."""
        return sum(len(update) for update in self._updates())

    def __iter__(self) -> Iterator[Batch]:
        """Yield the remaining micro-batches of the job's epoch."""
        job, epoch = self.job, self.job.epoch
        while job.epoch == epoch:
            formation = job.formation
            with contextlib.suppress(UpdateAbandoned):
                for micro, batch in self._loaded():
                    job.begin(micro)
                    yield batch
                    job.expect_processed(micro)
                    if job.formation is not formation:
                        break  # prefetched batches belong to another rank now

    def _loaded(self) -> Iterator[tuple[MicroBatch, Batch]]:
        """Yield the remaining micro-batches with their samples, by the current plan."""
        for update in self._streamed() if self._size is None else self._indexed():
            yield from (
                update
                if self._count is None
                else _weigh_by_count(list(update), self._count, self.job)
            )

    def _indexed(self) -> Iterator[Iterator[tuple[MicroBatch, Batch]]]:
        """Yield the remaining updates of a data set with indices."""
        if self._inner is None:
            self._inner = data.DataLoader(
                Samples(self.dataset, seed=self.job.seed, augment=self._augment),
                batch_sampler=_Indices(self),
                collate_fn=self._collate,
                generator=torch.Generator().manual_seed(self.job.seed),
                **self._options,
            )
        batches = _batches_of(self._inner)
        for update in self._updates():
            yield ((micro, next(batches)) for micro in update)

    def _streamed(self) -> Iterator[Iterator[tuple[MicroBatch, Batch]]]:
        """Yield the remaining updates of an iterable data set."""
        job = self.job
        stream = SampleStream(
            cast("Iterable[Any]", self.dataset),
            job.division,
            self._collate,
            global_batch=job.global_batch,
            skip=job.position.samples,
            epoch=job.epoch,
            seed=job.seed,
            augment=self._augment,
            drop_last=self.drop_last,
        )
        portions: Iterator[Portion] = _batches_of(
            data.DataLoader(stream, batch_size=None, collate_fn=_as_is, **self._options)
        )
        for portion in portions:
            job.first_sample = portion.first
            yield self._update_of(portion, portions)

    def _update_of(
        self, portion: Portion, portions: Iterator[Portion]
    ) -> Iterator[tuple[MicroBatch, Batch]]:
        """Yield an update's micro-batches; `portion` is its first one."""
        division = self.job.division
        for micro in micro_batches(division, portion.total, ends_epoch=portion.ends_epoch):
            yield micro, (portion if micro.first else next(portions)).batch

    def _updates(self) -> Iterator[Update]:
        """Yield the remaining updates of the epoch, as this rank's micro-batches."""
        size, job = self._epoch_size(), self.job
        for start in range(job.position.samples, size, job.global_batch):
            total = min(job.global_batch, size - start)
            ends_epoch = start + total == size
            yield micro_batches(job.division, total, ends_epoch=ends_epoch)

    def _epoch_size(self) -> int:
        """Return the number of samples of an epoch."""
        size, global_batch = self._size, self.job.global_batch
        if size is None:
            raise TypeError("An iterable data set has no length.")
        if self.drop_last:
            size -= size % global_batch
        if size == 0:
            raise ValueError(
                f"A data set of {self._size} samples has no update of {global_batch}: "
                "give it more samples, or leave out drop_last."
            )
        return size

    def indices(self) -> Iterator[list[SamplePlace]]:
        """Yield epoch and index of each sample, for each remaining micro-batch."""
        job, size = self.job, self._size
        assert size is not None
        epoch, start = job.epoch, job.position.samples
        order = order_of(size, seed=job.seed, epoch=epoch, shuffle=self.shuffle)
        for update in self._updates():
            for micro in update:
                first = start + micro.part.offset
                last = first + max(1, micro.part.size)
                yield list(zip(repeat(epoch), order[first:last].tolist(), strict=False))
            start += update[0].total


class _Indices(data.Sampler[list[SamplePlace]]):
    """A batch sampler that starts at the job's position each time it is iterated."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[SamplePlace]]:
        return self._loader.indices()


def _batches_of(loader: data.DataLoader[Any]) -> Iterator[Any]:
    """Iterate PyTorch's loader; where it ends a stuck process by SIGTERM, that is killed."""
    batches = iter(loader)
    for process in getattr(batches, "_workers", ()):
        process._popen.terminate = process._popen.kill  # noqa: SLF001 - also used by Python's exit
    return batches


def _as_is(portion: Any) -> Any:  # noqa: ANN401 - a collated Portion
    return portion


def _weigh_by_count(
    update: Sequence[tuple[MicroBatch, Batch]], count: Callable[[Batch], int], job: LoadingJob
) -> list[tuple[MicroBatch, Batch]]:
    """Weight this rank's micro-batches of an update by their counts, relative to all ranks.

    The total must be known before the first backward pass: the mean of ragged batches' means is
    not the mean of all items.

    Returns:
        The micro-batches with new weights, all 0 if the total is 0.
    """
    counts = [float(count(batch)) if micro.part.size else 0.0 for micro, batch in update]
    total = job.total(sum(counts))
    return [
        (
            replace(
                micro,
                weight=item_count / total if total else 0.0,
                unit=1 / total if total and micro.part.size else 0.0,
            ),
            batch,
        )
        for (micro, batch), item_count in zip(update, counts, strict=True)
    ]
