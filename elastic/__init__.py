"""Elastic training: the same global batch at any number of GPUs.

The module imports no framework; `runai.elastic.torch` and `runai.elastic.keras` do. Their `init`
sets its attributes, as in the original library: `steps`, `batch_size`, `global_batch_size`, `gpus`,
`master`.
"""

from __future__ import annotations

from typing import Never

import runai
from runai.elastic.batching import BatchPlan, plan_batches
from runai.elastic.installation import warn_of_conflict

__all__ = ["publish"]  # `publish` sets the attributes

global_batch_size: int
"""Samples of one update of the weights, over all GPUs."""
max_gpu_batch_size: int
"""The most samples of one GPU's micro-batch."""
gpus: int
"""GPUs that train together, over all processes."""
steps: int
"""Micro-batches accumulated per update."""
batch_size: int
"""The largest micro-batch of one GPU."""
master: bool
"""True on rank 0, which writes logs and files."""
plan: BatchPlan
"""The samples of each rank; a rank is a process, which may drive several GPUs."""
micro_batches: tuple[int, ...]
"""Samples of each micro-batch of this process."""
rank: int
"""The rank of this process."""
generation: int
"""Number of times that the process group was re-formed."""


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
        gpu_batch: the most samples of one GPU's micro-batch.
        ranks: processes that train together.
        rank: of this process.
        devices: GPUs of each process (`torch.nn.DataParallel`).
        generation: number of times that the group was re-formed.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, or the rank is out of range.
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
    """Set the attributes without a framework, as in runai 0.4.1; prefer a framework's `init`.

    Args:
        global_batch_size: samples of one update, over all GPUs.
        max_gpu_batch_size: the most samples of one GPU's micro-batch.
        gpus: GPUs of this process; None: the visible ones, else 1.
    """
    from runai.utils import gpus as visible  # noqa: PLC0415 - a rarely used original

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


warn_of_conflict(runai)
