"""Train on several processes with Keras's PyTorch back end.

Knows the process group. Gradients are summed once per update, without DistributedDataParallel: the
weights of micro-batches add up to 1 over all ranks. The other back ends drive several devices from
one process. Called by `start`, `models` and `steps`, with the PyTorch back end only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["any_rank", "join", "rank_and_ranks", "share_weights", "sum_over_ranks"]


def join() -> tuple[int, int]:
    """Form the group that a launcher started (`WORLD_SIZE`); return this rank and their number."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return rank_and_ranks()


def rank_and_ranks() -> tuple[int, int]:
    """Return this process's rank and how many there are; `(0, 1)` alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def any_rank(flag: bool) -> bool:  # noqa: FBT001 - what is asked of all
    """Say whether it is true of any rank, so that all do the same."""
    if rank_and_ranks()[1] == 1:
        return flag
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    flags = torch.tensor(float(flag), device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags.item())


def share_weights(variables: Sequence[Any]) -> None:
    """Give all ranks the first one's values."""
    if rank_and_ranks()[1] > 1:
        for variable in variables:
            dist.broadcast(variable.value.data, src=0)


def sum_over_ranks(sums: list[torch.Tensor], used: set[int]) -> set[int]:
    """Sum gradients over the ranks, in place; return which variables some rank has one for."""
    device = sums[0].device
    flags = torch.tensor([float(i in used) for i in range(len(sums))], device=device)
    for dtype in sorted({total.dtype for total in sums}, key=str):
        _sum([total for total in sums if total.dtype == dtype])
    dist.all_reduce(flags)
    return {index for index, ranks in enumerate(flags.tolist()) if ranks}


def _sum(alike: list[torch.Tensor]) -> None:
    flat = torch.cat([total.detach().reshape(-1) for total in alike])
    dist.all_reduce(flat)
    for total, part in zip(alike, torch.split(flat, [t.numel() for t in alike]), strict=True):
        total.copy_(part.view_as(total))
