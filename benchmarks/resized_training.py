"""The training that `elastic_resize.py` resizes: run by a launcher, ours or torchrun.

Each rank records the end and the samples of each update in the given directory. The training ends
when it is asked to leave.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import runai.elastic.torch as elastic

SAMPLES, GLOBAL_BATCH, GPU_BATCH, WIDTHS = 4096, 256, 64, (784, 2048, 2048, 1500, 10)


class Images(Dataset[Any]):
    """A data set of noise with labels, which also returns each sample's number."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, WIDTHS[0], generator=generator)
        self.y = torch.randint(WIDTHS[-1], (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index], self.y[index], index


def train(directory: Path) -> None:
    """Train until asked to stop, and record the end of each update."""
    torch.set_num_threads(1)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(WIDTHS):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    elastic.init(GLOBAL_BATCH, GPU_BATCH)
    job = elastic.Job(model, optimizer, seed=1)
    loader: Any = elastic.DataLoader(Images(), augment=False)
    loss_of = nn.CrossEntropyLoss()
    steps = (directory / f"steps-{os.getpid()}.jsonl").open("a", buffering=1)
    used: list[int] = []

    def note(job: elastic.Job) -> None:
        # Called when the weights are updated and before the group may be formed anew.
        step = {"update": job.update, "rank": job.rank, "ranks": job.ranks, "samples": used}
        steps.write(json.dumps({**step, "at": time.monotonic()}) + "\n")
        used.clear()

    job.after_update.append(note)
    for _ in job.epochs(10**6):
        for x, y, indices in loader:
            used += indices.tolist()
            job.backward(loss_of(job.model(x), y))
            job.step()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
