"""Elastic training: the same global batch at any number of GPUs.

Knows nothing of a framework and imports none: `runai.elastic.torch` and `runai.elastic.keras` do.
What `init` of either found stands here as attributes, as in the original library: `steps`,
`batch_size`, `global_batch_size`, `gpus`, `master`. Used by training scripts.
"""

from __future__ import annotations

from typing import Never

import runai
from runai.elastic.batching import BatchPlan, plan_batches
from runai.elastic.installation import look_for_another

__all__ = ["publish"]  # the attributes are there after `publish` only

global_batch_size: int
"""Samples of one update of the weights, over all GPUs."""
max_gpu_batch_size: int
"""The most samples that one GPU holds at a time."""
gpus: int
"""GPUs that train together, over all processes."""
steps: int
"""Micro-batches that are accumulated for one update."""
batch_size: int
"""The largest micro-batch of one GPU."""
master: bool
"""Whether this process is the one that writes logs and files: rank 0."""
plan: BatchPlan
"""Who computes which samples; a rank is a process, which may drive several GPUs."""
micro_batches: tuple[int, ...]
"""Samples of each micro-batch of this process."""
rank: int
"""Which of the processes this is."""
generation: int
"""How often the group of processes was formed anew."""


def publish(
    global_batch: int,
    gpu_batch: int,
    *,
    ranks: int = 1,
    rank: int = 0,
    devices: int = 1,
    generation: int = 0,
) -> BatchPlan:
    """Set the attributes of this module, and return the plan among the processes.

    Args:
        global_batch: samples of one update, over all GPUs.
        gpu_batch: the most samples that one GPU holds at a time.
        ranks: processes that train together.
        rank: which of them this is.
        devices: GPUs that each of them drives (`torch.nn.DataParallel`).
        generation: how often the group was formed anew.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, or the rank is none of the ranks.
    """
    by_gpu = plan_batches(global_batch, gpu_batch, ranks * devices)
    by_rank = plan_batches(global_batch, gpu_batch * devices, ranks)
    if not 0 <= rank < ranks:
        raise ValueError(f"Rank {rank} is none of {ranks} ranks (0 to {ranks - 1}).")
    globals().update(
        global_batch_size=global_batch,
        max_gpu_batch_size=gpu_batch,
        gpus=ranks * devices,
        steps=by_gpu.steps,
        batch_size=by_gpu.batch_size,
        master=rank == 0,
        plan=by_rank,
        micro_batches=by_rank.micro_batches[rank],
        rank=rank,
        generation=generation,
    )
    return by_rank


def _init(global_batch_size: int, max_gpu_batch_size: int, gpus: int | None = None) -> None:
    """Set the attributes without a framework, as runai 0.4.1 had it; use the `init` of one.

    Args:
        global_batch_size: samples of one update, over all GPUs.
        max_gpu_batch_size: the most samples that one GPU holds at a time.
        gpus: GPUs of this process; None: those that are visible, else 1.
    """
    from runai.utils import gpus as visible  # noqa: PLC0415 - the original's, seldom called

    publish(
        global_batch_size,
        max_gpu_batch_size,
        devices=max(1, visible.count()) if gpus is None else gpus,
    )


def __getattr__(name: str) -> Never:
    if name == "hvd":
        raise AttributeError(
            "runai.elastic.hvd was Horovod, which is not used any more: PyTorch trains with"
            " torch.distributed (runai.elastic.torch.Job), Keras with its back end's distribution."
            " runai.elastic.rank and runai.elastic.gpus tell what hvd.rank() and hvd.size() did."
        )
    if name in __annotations__:
        raise AttributeError(
            f"runai.elastic.{name} is not known yet: call runai.elastic.torch.init(256, 64) or "
            "runai.elastic.keras.init(256, 64) first (global batch size, largest batch of one GPU)."
        )
    raise AttributeError(f"module 'runai.elastic' has no attribute {name!r}")


look_for_another(runai)
