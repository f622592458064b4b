"""Small trainings that ranks run in the tests of elastic PyTorch; each returns NumPy arrays.

Knows one task (230 samples, a global batch of 50: a tail of 30) and the same training written out
by hand, without the library: what all others are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from runai.elastic import torch as elastic
from runai.elastic.torch.samples import order_of

SAMPLES, GLOBAL_BATCH, GPU_BATCH, EPOCHS, SEED = 230, 50, 16, 3, 7
UPDATES = EPOCHS * 5


@dataclass(frozen=True)
class Training:
    """What differs among trainings of the task."""

    dropout: float = 0.0
    batch_norm: bool = False
    dtype: torch.dtype = torch.float32
    clip_norm: float | None = 1.0
    updates: int = UPDATES
    bitwise: bool = False
    state: str = ""
    """A file to resume from and to save to."""


def task(dtype: torch.dtype) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 10, dtype=dtype, generator=generator)
    noise = torch.randn(SAMPLES, 1, dtype=dtype, generator=generator)
    return TensorDataset(x, x.sin().sum(1, keepdim=True) + 0.1 * noise)


def network(training: Training) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        norm = nn.BatchNorm1d(24) if training.batch_norm else nn.Identity()
        layers = [nn.Linear(10, 24), norm, nn.Tanh(), nn.Dropout(training.dropout)]
        return nn.Sequential(*layers, nn.Linear(24, 1)).to(training.dtype)


def parts(model: nn.Module) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)


def arrays(model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def by_hand(training: Training) -> dict[str, np.ndarray[Any, Any]]:
    """Train as one does who has a GPU for the whole global batch and never heard of us."""
    data, model = task(training.dtype), network(training)
    optimizer, scheduler = parts(model)
    for epoch in range(EPOCHS):
        order = order_of(SAMPLES, seed=SEED, epoch=epoch, shuffle=True)
        for indices in order.split(GLOBAL_BATCH):
            x, y = data[indices]
            nn.functional.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm or 1e9)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return arrays(model)


def elastically(rank: int, ranks: int, training: Training) -> dict[str, np.ndarray[Any, Any]]:
    """Train as a script does that has the library."""
    model = network(training)
    optimizer, scheduler = parts(model)
    elastic.init(GLOBAL_BATCH, GPU_BATCH)
    job = elastic.Job(model, optimizer, scheduler=scheduler, seed=SEED)
    loader = elastic.DataLoader(task(training.dtype))
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            job.backward(nn.functional.mse_loss(job.model(x), y))
            job.step(clip_norm=training.clip_norm)
    return arrays(model)
