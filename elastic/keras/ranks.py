"""Process group and collectives of Keras's PyTorch back end.

Gradients are summed once per update, without DistributedDataParallel: the weights of micro-batches
add up to 1 over all ranks. The other back ends drive several devices from one process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from runai.elastic.keras import generations
from runai.elastic.membership import Membership
from runai.elastic.torch import group


def join() -> tuple[int, int]:
    """Form the process group; return rank and number of ranks.

    Its processes belong to the generation of a cluster or our launcher, else to a launcher such as
    torchrun (`WORLD_SIZE`).

    Raises:
        SystemExit: if this process must leave.
    """
    if dist.is_initialized() or generations.current() is not None:
        return rank_and_ranks()
    membership = Membership.from_environment()
    launched = int(os.environ.get("WORLD_SIZE") or 1) > 1
    if torch.cuda.is_available() and (launched or membership is not None):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0))
    if membership is not None:
        generations.enter(membership, _form_group)
    elif launched:
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return rank_and_ranks()


def _form_group(meeting: group.Meeting) -> None:
    group.form_group(meeting, cuda=torch.cuda.is_available())


def rank_and_ranks() -> tuple[int, int]:
    """Return rank and number of ranks; `(0, 1)` without a group."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def agree(gen: int, *, must_leave: bool) -> tuple[int, bool]:
    """Return the highest generation read by any rank, and True if any must leave."""
    if rank_and_ranks()[1] == 1:
        return gen, must_leave
    views = torch.tensor([gen, int(must_leave)])
    with generations.restart_after_lost_peer():
        dist.all_reduce(views, op=dist.ReduceOp.MAX)
    return int(views[0]), bool(views[1])


def share_weights(variables: Sequence[Any]) -> None:
    """Broadcast rank 0's values."""
    if rank_and_ranks()[1] > 1:
        with generations.restart_after_lost_peer():
            for variable in variables:
                dist.broadcast(variable.value.data, src=0)


def sum_over_ranks(sums: list[torch.Tensor], used: set[int]) -> set[int]:
    """Sum gradients over the ranks in place; return variables with a gradient on any rank."""
    device = sums[0].device
    flags = torch.tensor([float(i in used) for i in range(len(sums))], device=device)
    with generations.restart_after_lost_peer():
        for dtype in sorted({total.dtype for total in sums}, key=str):
            _sum_together([total for total in sums if total.dtype == dtype])
        dist.all_reduce(flags)
    return {index for index, ranks in enumerate(flags.tolist()) if ranks}


def _sum_together(totals: list[torch.Tensor]) -> None:
    """Sum tensors of one type over the ranks, in place and in one message."""
    flat = torch.cat([total.detach().reshape(-1) for total in totals])
    dist.all_reduce(flat)
    for total, part in zip(totals, torch.split(flat, [t.numel() for t in totals]), strict=True):
        total.copy_(part.view_as(total))
