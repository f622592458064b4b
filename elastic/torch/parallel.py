"""Ranks that compute one update together, with DistributedDataParallel (`exact`).

Ranks accumulate their shares locally; the update's last backward pass reduces the gradients. `job`
creates a new object for each process group.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from runai.elastic.batching import plan_batches
from runai.elastic.torch.loading.position import Divider, MicroBatch, SampleRange
from runai.elastic.torch.start import launched


class Ranks(Protocol):
    """The computation of an update by the ranks of a job.

    The job calls `begin` before each micro-batch's forward pass and `collect` after its backward
    pass; then `reduce` after the last one, or `abandon` if the update is given up. `register` is
    called between an update's first `begin` and its forward pass.
    """

    division: Divider
    """This rank's part of an update; sent to the data loader's processes."""
    model: nn.Module
    """The model that the training script calls."""
    factor: float
    """Factor of each loss, besides its weight."""

    def begin(self, micro: MicroBatch) -> None:
        """Prepare the forward pass of a micro-batch."""

    def register(self, micro: MicroBatch) -> None:
        """Reduce the currently trainable parameters' gradients; all ranks agree on them."""

    def collect(self, micro: MicroBatch) -> None:
        """Accumulate the gradient of a micro-batch."""

    def reduce(self) -> None:
        """Store the whole update's gradient in the parameters' `grad`, on every rank."""

    def abandon(self) -> None:
        """Discard a partial update."""

    def release(self) -> None:
        """Drop references to model and process group."""


@dataclass(frozen=True, slots=True)
class RankDivision:
    """One rank's division of an update: consecutive samples in micro-batches."""

    gpu_batch: int
    rank: int
    ranks: int

    def parts(self, total: int) -> tuple[SampleRange, ...]:
        """Return the rank's micro-batches of an update of `total` samples."""
        return _parts_of_rank(self, total)


@lru_cache(maxsize=64)
def _parts_of_rank(division: RankDivision, total: int) -> tuple[SampleRange, ...]:
    plan = plan_batches(total, division.gpu_batch, division.ranks)
    offset, parts = plan.offsets[division.rank], []
    for step, size in enumerate(plan.micro_batches[division.rank]):
        parts.append(SampleRange(offset if size else 0, size, division.rank * plan.steps + step))
        offset += size
    return tuple(parts)


class DataParallelRanks:
    """Ranks that accumulate their shares; the last micro-batch's backward pass reduces them."""

    def __init__(
        self, module: nn.Module, gpu_batch: int, rank: int, ranks: int, ddp: Mapping[str, Any]
    ) -> None:
        """Wrap the model for several ranks; rank 0's weights and buffers are broadcast."""
        self._module = module
        self.division: Divider = RankDivision(gpu_batch, rank, ranks)
        self._no_sync = contextlib.ExitStack()
        self._options = _without_buffer_broadcast(ddp)
        self._ddp: DistributedDataParallel | None = None
        self.model, self.factor = module, 1.0
        if ranks > 1:
            self._wrap()
            self.factor = float(ranks)  # DDP averages; the weights of all ranks sum to one

    def _wrap(self) -> None:
        self.model = self._ddp = DistributedDataParallel(self._module, **self._options)

    def begin(self, micro: MicroBatch) -> None:
        """Enable reduction for the last micro-batch only; DDP reads this in the forward pass."""
        if self._ddp is not None:
            if micro.last:
                self._no_sync.close()
            elif micro.first:
                self._no_sync.enter_context(self._ddp.no_sync())

    def register(self, micro: MicroBatch) -> None:
        """Wrap the model again: DDP reads the trainable parameters at construction."""
        if self._ddp is not None:
            self.abandon()
            self.model, self._ddp = self._module, None  # its buckets are freed first
            self._wrap()
            self.begin(micro)

    def collect(self, micro: MicroBatch) -> None:
        """Do nothing: the gradient accumulates in the parameters."""

    def reduce(self) -> None:
        """Broadcast rank 0's buffers; the last backward pass has reduced the gradient."""
        if self._ddp is not None:
            broadcast_tensors(list(self._module.buffers()))
            # DDP would do it in the second update's forward pass, in the script: a lost peer there
            # could not be distinguished from an error of the model.
            self._ddp.reducer._rebuild_buckets()  # noqa: SLF001 - there is no public name

    def abandon(self) -> None:
        """Reset DDP's `no_sync`."""
        self._no_sync.close()

    def release(self) -> None:
        """Abandon a partial update; the DDP wrapper is freed together with this object."""
        self.abandon()


def _without_buffer_broadcast(ddp: Mapping[str, Any]) -> dict[str, Any]:
    """Disable DDP's broadcast of buffers, so that forward passes do not wait for peers.

    PyTorch 2.15 renames the option, and warns about the old name.
    """
    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    names = ("forward_sync_buffers", "broadcast_buffers")
    if any(name in ddp for name in names):
        return dict(ddp)
    return {next(name for name in names if name in parameters): False, **ddp}


def join_launched() -> tuple[int, int]:
    """Join the launcher's process group; return rank and number of ranks.

    The group is formed if it does not exist, on the CPU and the GPU, if any. An elastic job's group
    is not: `resizing` forms one for each generation.
    """
    if os.environ.get("RUNAI_ELASTIC_DIR"):
        return 0, 1
    if not distributed.is_initialized():
        rank, ranks = launched()
        if ranks == 1:
            return rank, ranks
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        )
    return distributed.get_rank(), distributed.get_world_size()


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a model's parameters."""
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def total_over_ranks(number: float, device: torch.device) -> float:
    """Sum a number over all ranks, in double precision."""
    if not (distributed.is_initialized() and distributed.get_world_size() > 1):
        return number
    summed = torch.tensor([number], dtype=torch.float64, device=device)
    distributed.all_reduce(summed)
    return float(summed.item())


def broadcast_tensors(tensors: list[Tensor], source: int = 0) -> None:
    """Broadcast one rank's tensors in place, in one message per type and device."""
    by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in by_type.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
        distributed.broadcast(flat, source)
        parts = flat.split([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.detach().copy_(part.view_as(tensor))
