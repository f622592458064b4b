"""A small training that records every sample, for tests that resize, stop and kill it.

The task is `elastic_trainings`'. Two files lie beside the job's: `allowed` holds the number of
updates it may make, `records/WORKER.jsonl` the samples of each rank in each attempt. The launcher's
tests run it as a script, `elastic_cluster` as a function; `training_records` reads the records.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import runai.elastic
import runai.elastic.torch as elastic
from elastic_trainings import (
    GLOBAL_BATCH,
    GPU_BATCH,
    SAMPLES,
    SEED,
    Training,
    arrays,
    change,
    network,
    parts,
    task,
)


class _Numbered(Dataset[Any]):
    """A data set of samples with their index."""

    def __init__(self, inner: Dataset[Any]) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return (*self._inner[index], index)


def train(directory: Path, epochs: int, training: Training, every: int | None = None) -> None:
    """Train as a user's script does, recording each micro-batch before it is computed."""
    import numpy as np

    torch.set_num_threads(1)
    worker = os.environ.get("RUNAI_WORKER", f"rank{os.environ.get('RANK', '0')}")
    worker = worker.rpartition("/")[2]  # the platform's names begin with their project
    (directory / "records").mkdir(exist_ok=True)
    model = network(training)
    optimizer, scheduler = parts(model, training)
    elastic.init(GLOBAL_BATCH, GPU_BATCH)
    options: dict[str, Any] = {"bitwise": True} if training.bitwise else {}
    job = elastic.Job(
        model, optimizer, scheduler=scheduler, seed=SEED, checkpoint_every=every, **options
    )
    loader = elastic.DataLoader(_Numbered(task(double=training.double)))
    with (directory / "records" / f"{worker}.jsonl").open("a", buffering=1) as records:
        for _ in job.epochs(epochs):
            for x, y, indices in loader:
                record = {
                    "update": job.update,
                    "gen": getattr(runai.elastic, "generation", 0),
                    "worker": worker,
                    "ranks": job.ranks,
                    "indices": indices.tolist(),
                }
                records.write(json.dumps(record) + "\n")
                _wait_until_allowed(directory, job.update)
                change(training, model, optimizer, job.update)
                job.backward(nn.functional.mse_loss(job.model(x), y))
                job.step(clip_norm=1.0)
    if job.rank == 0:
        part = directory / f".weights.{worker}.npz"
        np.savez(part, **arrays(model))  # type: ignore[arg-type]  # NumPy 2's stub: a keyword
        part.replace(directory / "weights.npz")


def train_calmly(_rank: int, _ranks: int, directory: str, epochs: int, training: Training) -> None:
    """Train on one rank without resizes."""
    train(Path(directory), epochs, training)


def _wait_until_allowed(directory: Path, update: int) -> None:
    path = directory / "allowed"
    while path.exists() and update >= int(path.read_text() or 0):
        time.sleep(0.005)


if __name__ == "__main__":
    train(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        Training(bitwise="bitwise" in sys.argv, dropout=0.3 if "bitwise" in sys.argv else 0.0),
        every=3,
    )
