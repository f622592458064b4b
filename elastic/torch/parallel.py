"""Ranks that compute one update together, with DistributedDataParallel (`exact`).

Knows how an update is divided by ranks, when gradients are reduced, and that DDP averages over the
ranks. What is done with the reduced gradient is `boundary`'s. Made anew by `job` whenever the
group of processes is another.
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
from runai.elastic.torch.loading.position import Divider, MicroBatch, Part
from runai.elastic.torch.start import launched


class Ranks(Protocol):
    """How the ranks of a job compute an update together.

    For each micro-batch `begin` is called before its forward pass and `collect` after its backward
    pass; after the last one of an update `reduce`, or `abandon` where the update is given up.
    `register` is called between an update's first `begin` and its forward pass.
    """

    division: Divider
    """Which part of an update this rank computes; it is sent to loading processes."""
    model: nn.Module
    """What the training script calls."""
    factor: float
    """What each loss is multiplied with, besides its weight."""

    def begin(self, micro: MicroBatch) -> None:
        """Prepare the forward pass of a micro-batch."""

    def register(self, micro: MicroBatch) -> None:
        """Reduce the gradients of the parameters that are trainable now, on all ranks alike."""

    def collect(self, micro: MicroBatch) -> None:
        """Take the gradient of a micro-batch."""

    def reduce(self) -> None:
        """Leave the gradient of the whole update on every rank, in the parameters' `grad`."""

    def abandon(self) -> None:
        """Forget what was computed of an update."""

    def release(self) -> None:
        """Let go of the model and of the process group."""


@dataclass(frozen=True, slots=True)
class RankDivision:
    """The plan as one rank sees it: its consecutive samples of an update, some at a time."""

    gpu_batch: int
    rank: int
    ranks: int

    def parts(self, total: int) -> tuple[Part, ...]:
        """Return the rank's micro-batches of an update of `total` samples."""
        return _parts_of_rank(self, total)


@lru_cache(maxsize=64)
def _parts_of_rank(division: RankDivision, total: int) -> tuple[Part, ...]:
    plan = plan_batches(total, division.gpu_batch, division.ranks)
    offset, parts = plan.offsets[division.rank], []
    for step, size in enumerate(plan.micro_batches[division.rank]):
        parts.append(Part(offset if size else 0, size, division.rank * plan.steps + step))
        offset += size
    return tuple(parts)


class DataParallelRanks:
    """Ranks that each accumulate their share; the last micro-batch's backward pass reduces it."""

    def __init__(
        self, module: nn.Module, gpu_batch: int, rank: int, ranks: int, ddp: Mapping[str, Any]
    ) -> None:
        """Wrap the model where there are several ranks; rank 0's weights and buffers hold."""
        self._module = module
        self.division: Divider = RankDivision(gpu_batch, rank, ranks)
        self._quiet = contextlib.ExitStack()
        self._options = _without_buffers(ddp)
        self._ddp: DistributedDataParallel | None = None
        self.model, self.factor = module, 1.0
        if ranks > 1:
            self._wrap()
            self.factor = float(ranks)  # DDP averages; the weights of all ranks sum to one

    def _wrap(self) -> None:
        self.model = self._ddp = DistributedDataParallel(self._module, **self._options)

    def begin(self, micro: MicroBatch) -> None:
        """Reduce in the last backward pass only; DDP decides that in the forward pass."""
        if self._ddp is not None:
            if micro.last:
                self._quiet.close()
            elif micro.first:
                self._quiet.enter_context(self._ddp.no_sync())

    def register(self, micro: MicroBatch) -> None:
        """Wrap the model anew: DDP knows the parameters that were trainable then."""
        if self._ddp is not None:
            self.abandon()
            self.model, self._ddp = self._module, None  # its buckets are freed first
            self._wrap()
            self.begin(micro)

    def collect(self, micro: MicroBatch) -> None:
        """Leave the gradient where it is: it adds up in the parameters."""

    def reduce(self) -> None:
        """Send rank 0's buffers; the gradient was reduced in the last backward pass."""
        if self._ddp is not None:
            broadcast_tensors(list(self._module.buffers()))
            # DDP would do it in the second update's forward pass, which is the script's: a peer
            # that is lost then could not be told from an error of the model.
            self._ddp.reducer._rebuild_buckets()  # noqa: SLF001 - there is no public name

    def abandon(self) -> None:
        """Forget that reducing was off."""
        self._quiet.close()

    def release(self) -> None:
        """Forget the update; the wrapper goes with this object."""
        self.abandon()


def _without_buffers(ddp: Mapping[str, Any]) -> dict[str, Any]:
    """Have buffers sent at the boundary only: `backward` and `step` wait for others, no forward.

    PyTorch 2.15 has another name for it, and warns of the old one.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    names = ("forward_sync_buffers", "broadcast_buffers")
    if any(name in ddp for name in names):
        return dict(ddp)
    return {next(name for name in names if name in known): False, **ddp}


def join_launched() -> tuple[int, int]:
    """Return this process's rank and how many there are, in the group that a launcher meant.

    The group is formed where nobody did; on the processor and, where there is one, the GPU. That of
    an elastic job is not: `resizing` forms it, generation by generation.
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
    """Return where a model's parameters are."""
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def total_over_ranks(number: float, device: torch.device) -> float:
    """Sum a number over all ranks, in double precision."""
    if not (distributed.is_initialized() and distributed.get_world_size() > 1):
        return number
    box = torch.tensor([number], dtype=torch.float64, device=device)
    distributed.all_reduce(box)
    return float(box.item())


def broadcast_tensors(tensors: list[Tensor], source: int = 0) -> None:
    """Overwrite tensors on all ranks with those of one, in one message for each type."""
    by_type: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        by_type.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for group in by_type.values():
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
        distributed.broadcast(flat, source)
        parts = flat.split([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.detach().copy_(part.view_as(tensor))
