"""Ranks that change which parameters they train, for the tests of thawed and frozen layers.

Contains small models, and the changes that a script may make between two passes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import TensorDataset

from elastic_trainings import CHANGED_AT, Arrays, Training, arrays, change, make_job, train
from ranks import form_group
from runai.elastic import torch as elastic


def train_rank_0_ahead(rank: int, ranks: int, training: Training, store: str) -> Arrays:
    """Form a new group after rank 0 has changed its model, and before rank 1 has."""
    job = make_job(training)

    def hook(job: elastic.Job) -> None:
        if job.update == CHANGED_AT:
            if rank == 0:
                change(training, job.module, job._boundary.optimizer, job.update)
            job.release()
            distributed.destroy_process_group()
            form_group(rank, 2, store)
            job.replan(rank, 2)

    job.after_update.append(hook)
    return train(job, training)


@contextlib.contextmanager
def _small_job(*, bitwise: bool) -> Generator[tuple[elastic.Job, nn.Sequential, Any, Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = elastic.Job(model, optimizer, bitwise=bitwise, global_batch=8, gpu_batch=2)
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(16, 2)
    try:
        yield job, model, optimizer, elastic.DataLoader(TensorDataset(x), job=job)
    finally:
        torch.use_deterministic_algorithms(mode=False)


def change_layer(rank: int, ranks: int, what: str, when: str, bitwise: bool) -> str:
    """Change a model in its second update; return the resulting error message."""
    with _small_job(bitwise=bitwise) as (job, model, optimizer, loader):
        micro_batches = 0

        def at(moment: str) -> None:
            if (job.update, when) == (1, moment):
                _change(what, rank, model, optimizer)

        try:
            for (x,) in loader:
                assert job._micro is not None
                micro_batches = 0 if job._micro.first else micro_batches + 1
                at("first-forward" if micro_batches == 0 else "second-forward")
                loss = job.model(x).square().mean()
                at("first-backward" if micro_batches == 0 else "second-backward")
                job.backward(loss)
                job.step()
        except (RuntimeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return ""


def _change(what: str, rank: int, model: nn.Sequential, optimizer: Any) -> None:
    first: Any = model[0]
    if what == "freeze":
        first.weight.requires_grad_(False)
    elif what == "freeze-on-rank-1":
        first.weight.requires_grad_(rank != 1)
    elif what == "add":
        model.append(nn.Linear(1, 1).double())
    elif what == "take-out":
        model[0] = nn.Identity()
    elif what == "replace":
        first.weight = nn.Parameter(first.weight.detach().clone())
    elif what == "strange":
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, 2))]})
    elif what == "in-place":
        first.weight.data = first.weight.data.clone()
        model[1].load_state_dict(model[1].state_dict())


def train_with_input_gradients(rank: int, ranks: int, bitwise: bool, with_attack: bool) -> Arrays:
    """Train; before each pass, all is frozen for a look at the gradient of the inputs."""
    with _small_job(bitwise=bitwise) as (job, model, _, loader):
        for (x,) in loader:
            if with_attack:
                model.requires_grad_(False)
                inputs = x.clone().requires_grad_()
                job.model(inputs).sum().backward()
                assert inputs.grad is not None
                model.requires_grad_(True)
            job.backward(job.model(x).square().mean())
            job.step()
        return arrays(model)
