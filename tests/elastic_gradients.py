"""The gradient of one update of small models, by ranks, with tokens and with a scaler.

The expected gradients are written out; a learning rate of 1 makes the change of the weights the
gradient. Run by the tests of weighting and of the boundary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from runai.elastic import torch as elastic

SEQUENCES, LONGEST, WORDS, IGNORED = 23, 12, 7, -100
Arrays = dict[str, Any]


def sentences(*, empty: bool = False) -> TensorDataset:
    """Return ragged sequences of tokens, padded; `empty`: there is nothing to learn from them."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.arange(SEQUENCES) % LONGEST + 1
    words = torch.randint(WORDS, (SEQUENCES, LONGEST), generator=generator)
    labels = torch.randint(WORDS, (SEQUENCES, LONGEST), generator=generator)
    padding = torch.arange(LONGEST) >= (0 if empty else lengths[:, None])
    return TensorDataset(words, labels.masked_fill(padding, IGNORED))


def language_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Embedding(WORDS, 5), nn.Linear(5, WORDS)).double()


def token_loss(model: nn.Module, words: Tensor, labels: Tensor, reduction: str) -> Tensor:
    scores = model(words).flatten(0, 1)
    return cross_entropy(scores, labels.flatten(), ignore_index=IGNORED, reduction=reduction)


def count_tokens(batch: tuple[Tensor, Tensor]) -> int:
    return int((batch[1] != IGNORED).sum())


def expected_token_gradient() -> Arrays:
    """Return the gradient of the mean over all tokens."""
    model = language_model()
    words, labels = sentences().tensors
    token_loss(model, words, labels, "mean").backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


def token_gradient(
    rank: int, ranks: int, reduction: Literal["mean", "sum"], *, empty: bool = False
) -> Arrays:
    """Return the gradient of one update with all sequences, three at a time."""
    model = language_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job = elastic.Job(model, optimizer, global_batch=SEQUENCES, gpu_batch=3)
    loader = elastic.DataLoader(sentences(empty=empty), job=job, count=count_tokens)
    for words, labels in loader:
        job.backward(token_loss(job.model, words, labels, reduction), reduction=reduction)
        job.step()
    return {name: (before[name] - p.detach()).numpy() for name, p in model.named_parameters()}


def train_with_scaler(rank: int, ranks: int, infinite_sample: int | None) -> Arrays:
    """Train one update of 8 samples, 2 at a time, with a scaler; one sample may be infinite."""
    x = torch.linspace(-1, 1, 16).reshape(8, 2)
    y = x.sum(1, keepdim=True)
    if infinite_sample is not None:
        x[infinite_sample] = torch.inf
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    average = torch.optim.swa_utils.AveragedModel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    job = elastic.Job(
        model,
        optimizer,
        scheduler=scheduler,
        scaler=scaler,
        ema=average,
        global_batch=8,
        gpu_batch=2,
    )
    boundaries = 0
    for inputs, targets in elastic.DataLoader(TensorDataset(x, y), job=job, shuffle=False):
        job.backward(nn.functional.mse_loss(job.model(inputs), targets))
        boundaries += job.step(clip_norm=1.0)
    return {
        "weight": model.weight.detach().flatten().tolist(),
        "scale": scaler.get_scale(),
        "rate": scheduler.get_last_lr()[0],
        "averaged": int(average.n_averaged),
        "boundaries": boundaries,
        "update": job.update,
    }


def gradient_without_tokens(rank: int, ranks: int) -> Arrays:
    """Return the gradient where all tokens are padding."""
    return token_gradient(rank, ranks, "mean", empty=True)
