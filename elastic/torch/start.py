"""`init`, as in the original library: divide the global batch among the GPUs.

The number of GPUs follows from the launcher's environment (`WORLD_SIZE`, `RANK`) and the visible
devices.
"""

from __future__ import annotations

import os

import torch

import runai.elastic
from runai.utils.notices import notice

DIVIDES = (
    "runai.elastic: {gpus} GPUs in one process. torch.nn.DataParallel divides what a loader yields:"
    " let it yield {size} samples (runai.elastic.batch_size is for each GPU), as"
    " runai.elastic.torch.DataLoader does."
)


def init(global_batch_size: int, max_gpu_batch_size: int, gpus: int | None = None) -> None:
    """Divide the global batch among the GPUs, and set the attributes of `runai.elastic`.

    Args:
        global_batch_size: samples of one update of the weights, over all GPUs.
        max_gpu_batch_size: the most samples of one GPU's micro-batch.
        gpus: GPUs over all processes; None: one for each launched process (`WORLD_SIZE`), else the
            visible ones, else 1 (training on the CPU).

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if a size is below 1, or `gpus` cannot be shared among the processes.
    """
    rank, ranks = launched()
    if gpus is None:
        gpus = ranks if ranks > 1 else max(1, torch.cuda.device_count())
    if gpus < 1:
        raise ValueError(f"gpus must be at least 1, not {gpus}.")
    if gpus % ranks:
        raise ValueError(
            f"gpus={gpus} cannot be shared among {ranks} processes (WORLD_SIZE): "
            "leave gpus out to use one GPU for each process."
        )
    plan = runai.elastic.publish(
        global_batch_size, max_gpu_batch_size, ranks=ranks, rank=rank, devices=gpus // ranks
    )
    if gpus > ranks:
        notice(DIVIDES.format(gpus=gpus // ranks, size=plan.batch_size))


def launched() -> tuple[int, int]:
    """Return rank and number of ranks of the launcher's environment, else `(0, 1)`."""
    ranks = int(os.environ.get("WORLD_SIZE") or 1)
    return (int(os.environ.get("RANK") or 0), ranks) if ranks > 1 else (0, 1)
