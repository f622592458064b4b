"""Small trainings for the tests of elastic PyTorch; each returns NumPy arrays.

All train one task (230 samples, a global batch of 50: a tail of 30). `train_by_hand` is the same
training written without the library: the reference for every other one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.utils.data import TensorDataset

from ranks import form_group
from runai.elastic import torch as elastic
from runai.elastic.torch.loading.samples import order_of

Arrays = dict[str, np.ndarray[Any, Any]]

SAMPLES, GLOBAL_BATCH, GPU_BATCH, EPOCHS, SEED = 230, 50, 16, 3, 7
UPDATES = EPOCHS * 5
CHANGED_AT = 6


@dataclass(frozen=True)
class Training:
    """The parameters by which trainings of the task differ."""

    dropout: float = 0.0
    batch_norm: bool = False
    bitwise: bool = False
    state: str = ""
    """A file to resume from and to save to."""
    until: int = UPDATES
    """The number of updates before the training stops."""
    double: bool = False
    change: str = ""
    """The change of the first layer before update `CHANGED_AT`: thaw, freeze or group."""
    by_hook: bool = False
    """Whether it changes after the previous update, not before the first forward pass."""


def task(*, double: bool = False) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 10, generator=generator)
    noise = torch.randn(SAMPLES, 1, generator=generator)
    y = x.sin().sum(1, keepdim=True) + 0.1 * noise
    return TensorDataset(x.double(), y.double()) if double else TensorDataset(x, y)


def network(training: Training) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        norm = nn.BatchNorm1d(24) if training.batch_norm else nn.Identity()
        layers = [nn.Linear(10, 24), norm, nn.Tanh(), nn.Dropout(training.dropout)]
        model = nn.Sequential(*layers, nn.Linear(24, 1))
        model[0].requires_grad_(training.change not in {"thaw", "group"})
        return model.double() if training.double else model


def change(training: Training, model: nn.Module, optimizer: Any, update: int) -> None:
    """Change the training at one update, as scripts do; happens once per training."""
    if update == CHANGED_AT and training.change:
        first = next(model.children())
        first.requires_grad_(training.change != "freeze")
        if training.change == "group" and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": first.parameters(), "lr": 3e-3})


def parts(model: nn.Module, training: Training = Training()) -> tuple[torch.optim.Optimizer, Any]:
    if training.change == "group":
        optimizer = torch.optim.AdamW([*model.children()][-1].parameters(), lr=1e-2)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)


def arrays(model: nn.Module) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def train_by_hand(training: Training) -> Arrays:
    """Train with plain PyTorch on one GPU that fits the whole global batch."""
    data, model = task(double=training.double), network(training)
    optimizer, scheduler = parts(model, training)
    for epoch in range(EPOCHS):
        order = order_of(SAMPLES, seed=SEED, epoch=epoch, shuffle=True)
        for number, indices in enumerate(order.split(GLOBAL_BATCH), epoch * 5):
            x, y = data[indices]
            change(training, model, optimizer, number)
            nn.functional.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return arrays(model)


def make_job(training: Training) -> elastic.Job:
    model = network(training)
    optimizer, scheduler = parts(model, training)
    elastic.init(GLOBAL_BATCH, GPU_BATCH)
    with warnings.catch_warnings(action="ignore"):  # of BatchNorm; another test checks them
        job = elastic.Job(
            model, optimizer, scheduler=scheduler, seed=SEED, bitwise=training.bitwise
        )
    if training.by_hook:
        job.after_update.append(lambda job: change(training, model, optimizer, job.update))
    return job


def train(job: elastic.Job, training: Training = Training()) -> Arrays:
    """Train with the library, as a user's script does; stop after some updates."""
    loader = elastic.DataLoader(task(double=training.double), job=job)
    for _ in job.epochs(EPOCHS):
        for x, y in loader:
            if not training.by_hook:
                change(training, job.module, job._boundary.optimizer, job.update)
            job.backward(nn.functional.mse_loss(job.model(x), y))
            if job.step(clip_norm=1.0) and job.update == training.until:
                return arrays(job.module)
    return arrays(job.module)


def train_elastically(rank: int, ranks: int, training: Training) -> Arrays:
    """Train on some ranks, from a saved state if there is one."""
    job, state = make_job(training), Path(training.state)
    if state.is_file():
        job.load_state_dict(torch.load(state, weights_only=True))
    found = train(job, training)
    if training.state and rank == 0:
        torch.save(job.state_dict(), state)
    return found


def train_swapped_ranks(rank: int, ranks: int, training: Training, store: str) -> Arrays | None:
    """Train on two ranks, which swap in the first epoch; then the second leaves."""
    job = make_job(training)

    def hook(job: elastic.Job) -> None:
        if job.update == 3:
            job.release()
            distributed.destroy_process_group()
            form_group(1 - rank, 2, store)
            job.replan(1 - rank, 2)
        elif job.update == 7:
            job.release()
            distributed.destroy_process_group()
            if job.rank == 1:
                raise _Left
            job.replan(0, 1)

    job.after_update.append(hook)
    try:
        return train(job, training)
    except _Left:
        return None


class _Left(Exception):
    pass


class RankedStream(torch.utils.data.IterableDataset[torch.Tensor]):
    """A stream of numbers that differs per rank, in one of several ways."""

    def __init__(self, kind: str, size: int, rank: int, ranks: int) -> None:
        self._numbers = {
            "Whole": range(size),
            "DividedByRank": range(rank, size, ranks),
            # The same first samples: only the counts differ.
            "LongerByRank": range(size // 2 + rank),
        }[kind]

    def __iter__(self) -> Any:
        for number in self._numbers:
            yield {"x": torch.tensor([float(number)]), "name": str(number)}


def refusal_of(rank: int, ranks: int, kind: str, size: int, processes: int) -> str:
    """Return the sentence that refuses a data set; empty if the training succeeds."""
    model = nn.Linear(1, 1)
    job = elastic.Job(model, torch.optim.SGD(model.parameters()), global_batch=3, gpu_batch=1)
    options: dict[str, Any] = {"multiprocessing_context": "fork"} if processes else {}
    loader = elastic.DataLoader(
        RankedStream(kind, size, rank, ranks), num_workers=processes, **options
    )
    try:
        for _ in job.epochs(2):
            for batch in loader:
                job.backward(job.model(batch["x"]).mean())
                job.step()
    except ValueError as error:
        return str(error)
    return ""
