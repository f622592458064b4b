"""`Job`: a training with the same result at any number of ranks.

It orders loader, backward passes, update boundary, counters and hooks. Ranks compute by `parallel`
(exact) or `virtual` (bitwise); `resizing` runs last after each update, and handles failures.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import runai.elastic
from runai.elastic.batching import BatchPlan
from runai.elastic.torch import state
from runai.elastic.torch.boundary import Average, Boundary
from runai.elastic.torch.loading.loader import set_default_job
from runai.elastic.torch.loading.position import Divider, MicroBatch, Position, UpdateAbandoned
from runai.elastic.torch.loading.randomness import key, seed_torch
from runai.elastic.torch.parallel import (
    DataParallelRanks,
    Ranks,
    device_of,
    join_launched,
    total_over_ranks,
)
from runai.elastic.torch.resizing import attach
from runai.elastic.torch.statistics import running_layers, warn_of_ghost_batches
from runai.elastic.torch.trainable_parameters import TrainableParameters
from runai.elastic.torch.virtual_workers import VirtualWorkers, enable_bitwise
from runai.ga.torch.optim import unwrap

_FORWARD = 3  # seed domain of forward passes; 1 and 2 are in loading/samples.py


class Job:
    """A training with the same global batch at any number of ranks.

    After each update the `after_update` hooks are called with the job; each may `replan`. An error
    of a backward pass or a step, such as a failed collective, is first passed to `on_failure`: it
    returns True if it has restored the job to a position from which the script continues.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: LRScheduler | None = None,
        scaler: GradScaler | None = None,
        ema: Average | None = None,
        seed: int = 0,
        bitwise: bool = False,
        virtual_workers: int | None = None,
        global_batch: int | None = None,
        gpu_batch: int | None = None,
        ddp: Mapping[str, Any] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
    ) -> None:
        """Combine the parts of a training, and start from its checkpoint or its peers' state.

        The job's cluster assigns the ranks, which this call waits for; else they are the ranks of
        the process group.

        Args:
            model: already on its device.
            optimizer: of the model's parameters; a wrapper of `runai.ga.torch` is removed, since
                the job accumulates.
            scheduler: of the learning rate, counted in updates.
            scaler: of mixed precision with float16.
            ema: a running average of the weights.
            seed: of the order of samples and of all random numbers of the training.
            bitwise: identical bits at any number of ranks, not only up to rounding: updates are
                cut into fixed slices, and kernels are deterministic.
            virtual_workers: slices of an update with `bitwise`: as many ranks have work; None: a
                power of two, at least 8, and enough for the GPU batch.
            global_batch: samples of an update; None: of `runai.elastic.torch.init`.
            gpu_batch: the most samples of one GPU's micro-batch; None: the same.
            ddp: options of `DistributedDataParallel`.
            checkpoint: directory to restore from and save to; None: `RUNAI_CHECKPOINT_DIR`, if
                set.
            checkpoint_every: updates between checkpoints; None: ten minutes.

        Raises:
            CheckpointError: if checkpoints exist, and none can be read.
            TypeError: if a part cannot be stepped once an update.
            ValueError: if a size is below 1, the slices exceed the GPU batch, or the optimizer has
                a parameter that is not the model's.
        """
        self.module, self.seed = model, seed
        self.global_batch = global_batch or runai.elastic.global_batch_size
        self.gpu_batch = gpu_batch or runai.elastic.max_gpu_batch_size
        self.position = Position()
        self.after_update: list[Callable[[Job], None]] = []
        self.on_failure: Callable[[Exception], bool] | None = None
        self.formation = object()
        """A new object whenever prefetched batches are no longer this rank's next ones."""
        self.first_sample = 0
        """Digest of the first sample of an iterable data set's epoch; 0: none."""
        self.read: tuple[int, ...] = 0, 0, 0
        """At the last update: samples of the epoch, whether it ended, its first sample's digest."""
        self.virtual_workers: int | None = None
        """Slices of an update with `bitwise`; constant for the life of the job."""
        if bitwise:
            self.virtual_workers = enable_bitwise(
                self.global_batch, self.gpu_batch, virtual_workers
            )
        elif running_layers(model):
            warn_of_ghost_batches()
        self._boundary = Boundary(model, unwrap(optimizer), scheduler, scaler, ema)
        self._trainable = TrainableParameters(model, self._boundary.optimizer)
        self._ddp = dict(ddp or {})
        self._generation = -1
        self._micro: MicroBatch | None = None
        self._backward_done = False
        self._has_gradient = True
        self._update_abandoned = False
        self._ranks = self._single_rank()
        self.replan(*join_launched())
        self._resizing = attach(self, checkpoint, checkpoint_every)
        set_default_job(self)

    @property
    def model(self) -> nn.Module:
        """The model to call, each time by this name: a resize replaces the object.

        A change of the trainable parameters since the last update replaces it, too.

        Raises:
            ValueError: if the ranks do not train the same parameters.
        """
        micro = self._micro
        if micro is not None and micro.first and not self._backward_done:
            self._trainable.register(self._ranks, micro)
        return self._ranks.model

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.position.epoch

    @property
    def update(self) -> int:
        """Updates of the weights since the job began, over all epochs and resizes."""
        return self.position.update

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return device_of(self.module)

    @property
    def gradient_norm(self) -> Tensor | None:
        """The norm of the last update's gradient before clipping; None without clipping."""
        return self._boundary.gradient_norm

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs of `count`, an interrupted one first.

        After the last one the state is saved, and the ranks of an elastic job leave the group.

        Raises:
            RuntimeError: if an epoch goes by without an update.
        """
        while self.epoch < count:
            before = self.position, self.formation
            yield self.epoch
            if before == (self.position, self.formation):
                raise RuntimeError(
                    f"Epoch {self.epoch} went by without an update: iterate over an "
                    "elastic.DataLoader, and call job.backward and job.step for each batch."
                )
        self._resizing.finish()

    def backward(self, loss: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> None:
        """Add a micro-batch's part to the gradient of the update.

        Args:
            loss: over the micro-batch's samples, or over the items that the loader counts.
            reduction: whether the loss is their mean or their sum.

        Raises:
            RuntimeError: if there is no micro-batch, or a parameter was thawed or frozen since the
                update's first forward pass.
            ValueError: if the ranks do not train the same parameters.
        """
        micro = self._micro
        if micro is None:
            if self._update_abandoned:
                return
            raise RuntimeError(
                "job.backward without a batch: call it once for each of an elastic.DataLoader."
            )
        weight = micro.weight if reduction == "mean" else micro.unit
        if weight == 0:  # a placeholder's loss may be a mean over nothing: NaN
            loss = loss.nan_to_num(0.0, 0.0, 0.0)
        try:
            if self._ranks.model is self.module:  # the script may call its own variable
                self._trainable.register(self._ranks, micro)
            self._trainable.expect_agreed()
            self._boundary.backward(loss, weight * self._ranks.factor)
            self._ranks.collect(micro)
        except RuntimeError as error:
            if not self._try_recovery(error):
                raise
        else:
            self._backward_done = True

    def step(self, clip_norm: float | None = None) -> bool:
        """Update the weights after the update's last micro-batch; else do nothing.

        Args:
            clip_norm: the largest norm of the update's gradient.

        Returns:
            True at the boundary of an update.

        Raises:
            RuntimeError: if `backward` was not called.
        """
        micro = self._micro
        if micro is None and self._update_abandoned:
            return False
        if micro is None or not self._backward_done:
            raise RuntimeError("job.step before job.backward: call both once for each batch.")
        if not micro.last:
            return False
        try:
            self._ranks.reduce()
        except RuntimeError as error:
            if self._try_recovery(error):
                return False
            raise
        self._boundary.apply(clip_norm)
        self.read = (
            self.position.samples + micro.total,
            int(micro.ends_epoch),
            self.first_sample,
        )
        self.position = self.position.after(micro.total, ends_epoch=micro.ends_epoch)
        self._micro, self._has_gradient = None, False
        formation = self.formation
        for hook in tuple(self.after_update):
            hook(self)
        if self.formation is not formation:
            self._resizing.replanned()
        self._resizing.after_update()
        return True

    def replan(self, rank: int, ranks: int) -> None:
        """Continue with another rank or number of ranks; between updates only.

        The default process group must already be the new one, and the model equal on all ranks.
        """
        self.release()
        self._generation += 1
        with self._trainable.with_rank_0_flags(ranks):
            self._ranks = self._make_ranks(rank, ranks)
        self._publish(rank, ranks)

    def release(self) -> None:
        """Drop all references to the process group, so that it can be destroyed; then `replan`."""
        self._trainable.begin()  # a stored collective keeps its group's connections open
        self._ranks.release()
        self._ranks = self._single_rank()
        self.formation = object()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, for any number of ranks.

        Tensors are the training's own, not copies. `torch.load` reads it with `weights_only`.
        """
        return state.capture(self, self._boundary)

    def load_state_dict(self, saved: Mapping[str, Any], *, force: bool = False) -> None:
        """Restore a copy of a saved state.

        Args:
            saved: by `state_dict`, at any number of ranks.
            force: accept another global batch or other virtual workers.

        Raises:
            ValueError: if the global batch or the virtual workers differ, or it is no state.
        """
        state.restore(self, self._boundary, saved, force=force)
        self._abandon_update()

    # The interface for loaders (`LoadingJob`).

    @property
    def division(self) -> Divider:
        """The current division of an update."""
        return self._ranks.division

    def begin(self, micro: MicroBatch) -> None:
        """Prepare the forward pass of a micro-batch."""
        if micro.first:
            self._trainable.begin()
        if micro.first and self._has_gradient:  # also after an update that the script abandoned
            self._ranks.abandon()
            self._boundary.optimizer.zero_grad(set_to_none=True)
        self._micro, self._backward_done = micro, False
        self._has_gradient, self._update_abandoned = True, False
        seed_torch(key(self.seed, _FORWARD, self.update, micro.part.number))
        self._ranks.begin(micro)

    def expect_processed(self, micro: MicroBatch) -> None:
        """Check that the script called `backward` and `step` for a micro-batch.

        Raises:
            RuntimeError: if it did not.
        """
        if self._micro is micro and (micro.last or not self._backward_done):
            raise RuntimeError(
                "A batch went by without job.backward and job.step: call both for each batch, "
                "since other ranks do."
            )

    def total(self, number: float) -> float:
        """Sum a number over all ranks.

        Raises:
            UpdateAbandoned: if a rank is gone, and the job was restored to another position.
        """
        try:
            return total_over_ranks(number, self.device)
        except RuntimeError as error:
            if self._try_recovery(error):
                raise UpdateAbandoned from error
            raise

    def _try_recovery(self, error: RuntimeError) -> bool:
        """Call `on_failure`; return True if it restored the job to a valid position."""
        if self.on_failure is None or not self.on_failure(error):
            return False
        self._abandon_update()
        self._update_abandoned = True
        return True

    def _abandon_update(self) -> None:
        self._ranks.abandon()
        self._micro, self._has_gradient, self.formation = None, True, object()

    def _single_rank(self) -> Ranks:
        return self._make_ranks(0, 1)

    def _make_ranks(self, rank: int, ranks: int) -> Ranks:
        if self.virtual_workers is not None:
            return VirtualWorkers(self.module, rank, ranks, workers=self.virtual_workers)
        micro_batch = self.gpu_batch * self._devices
        return DataParallelRanks(self.module, micro_batch, rank, ranks, self._ddp)

    @property
    def _devices(self) -> int:
        """GPUs of this process: several with `torch.nn.DataParallel`."""
        return max(1, len(getattr(self.module, "device_ids", None) or ()))

    def _publish(self, rank: int, ranks: int) -> None:
        """Set the plan and rank, here and in `runai.elastic`."""
        self.plan: BatchPlan = runai.elastic.publish(
            self.global_batch,
            self.gpu_batch,
            ranks=ranks,
            rank=rank,
            devices=self._devices,
            generation=self._generation,
        )
        self.rank, self.ranks = rank, ranks
        if ranks > self.global_batch:
            warnings.warn(
                f"{ranks} ranks share a global batch of {self.global_batch}: "
                f"{ranks - self.global_batch} of them compute what weighs nothing.",
                stacklevel=4,
            )
