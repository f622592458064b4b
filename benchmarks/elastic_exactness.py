"""Measure elastic PyTorch: the error of its gradients, and its cost per micro-batch.

    python benchmarks/elastic_exactness.py  # prints, and writes results/elastic_exactness.json

Error: against the gradient of the whole batch, in the same run. Baselines: the average of the means
of full-size micro-batches, and the sizes and steps of runai 0.4.1. Cost: against the same training
as a plain accumulating loop, on the same thread; the two alternate.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from machine import measured
from torch import Tensor, nn
from torch.utils import data

from runai.elastic import torch as elastic
from runai.elastic.torch.loading.position import micro_batches
from runai.elastic.torch.parallel import RankDivision

RESULTS = Path(__file__).parent / "results" / "elastic_exactness.json"
SIZES = [(256, 64, 1), (250, 64, 1), (100, 32, 1), (129, 64, 1), (257, 64, 4)]
FEATURES = 20
TARGET_US = 50.0
GLOBAL_BATCH, GPU_BATCH, SAMPLES = 64, 16, 64 * 100
ROUNDS = 15

Weighted = Sequence[tuple[int, int, float]]
"""Start, end and weight of each micro-batch of an update."""


def ours(global_batch: int, gpu_batch: int, ranks: int) -> Weighted:
    """Return the micro-batches of all ranks, with the library's weights."""
    return [
        (micro.part.offset, micro.part.offset + micro.part.size, micro.weight)
        for rank in range(ranks)
        for micro in micro_batches(RankDivision(gpu_batch, rank, ranks), global_batch)
        if micro.part.size
    ]


def seeds(global_batch: int, gpu_batch: int, ranks: int, *, mean: bool) -> Weighted:
    """Return what runai 0.4.1 computes: its sizes and steps; it sums, `mean` divides."""
    steps = max(1, global_batch // (gpu_batch * ranks))
    size = global_batch // (steps * ranks)
    # Ranks are averaged by Horovod or DDP; micro-batches of a rank are summed.
    weight = 1 / (steps * ranks) if mean else 1 / ranks
    return [(start * size, (start + 1) * size, weight) for start in range(steps * ranks)]


def full(global_batch: int, gpu_batch: int) -> Weighted:
    """Return full-size micro-batches and the remainder, with equal weights."""
    begins = range(0, global_batch, gpu_batch)
    return [(b, min(b + gpu_batch, global_batch), 1 / len(begins)) for b in begins]


def error(parts: Weighted, global_batch: int, dtype: torch.dtype) -> float:
    """Return the relative error of the micro-batches' gradient against the whole batch's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(global_batch, FEATURES, generator=generator, dtype=torch.float64)
    noise = torch.randn(global_batch, 1, generator=generator, dtype=torch.float64)
    rows, targets = x.to(dtype), (x.sum(1, keepdim=True).sin() + noise).to(dtype)

    def gradient(parts: Weighted) -> Tensor:
        weights = torch.linspace(-1, 1, FEATURES, dtype=dtype).reshape(-1, 1).requires_grad_()
        for begin, end, weight in parts:
            loss = ((rows[begin:end] @ weights).tanh() - targets[begin:end]).square().mean()
            (loss * weight).backward()
        assert weights.grad is not None
        return weights.grad

    whole = gradient([(0, global_batch, 1.0)])
    return float((gradient(parts) - whole).norm() / whole.norm())


def errors() -> list[dict[str, Any]]:
    """Return the table of gradient errors."""
    return [
        {
            "global_batch": sizes[0],
            "gpu_batch": sizes[1],
            "gpus": sizes[2],
            "seed_sum": error(seeds(*sizes, mean=False), sizes[0], torch.float64),
            "seed_mean": error(seeds(*sizes, mean=True), sizes[0], torch.float64),
            "mean_of_means": error(full(*sizes[:2]), sizes[0], torch.float64),
            "ours_float64": error(ours(*sizes), sizes[0], torch.float64),
            "ours_float32": error(ours(*sizes), sizes[0], torch.float32),
        }
        for sizes in SIZES
    ]


def _parts() -> tuple[nn.Module, torch.optim.Optimizer, data.TensorDataset]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(SAMPLES, FEATURES)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), data.TensorDataset(x, x[:, :1])


def plain() -> Callable[[], None]:
    """Return an epoch of a plain loop that accumulates."""
    model, optimizer, samples = _parts()
    loader = data.DataLoader(samples, batch_size=GPU_BATCH, shuffle=True)
    steps = GLOBAL_BATCH // GPU_BATCH

    def epoch() -> None:
        for number, (x, y) in enumerate(loader, 1):
            (nn.functional.mse_loss(model(x), y) / steps).backward()
            if number % steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return epoch


def elastically() -> Callable[[], None]:
    """Return an epoch of the same training with the library."""
    model, optimizer, samples = _parts()
    job = elastic.Job(model, optimizer, global_batch=GLOBAL_BATCH, gpu_batch=GPU_BATCH)
    loader = elastic.DataLoader(samples, job=job)

    def epoch() -> None:
        for x, y in loader:
            job.backward(nn.functional.mse_loss(job.model(x), y))
            job.step()

    return epoch


def costs() -> dict[str, Any]:
    """Return the microseconds per micro-batch, of the plain loop and with the library."""
    runs = {"plain": plain(), "elastic": elastically()}
    taken: dict[str, list[float]] = {"plain": [], "elastic": []}
    batches = SAMPLES // GPU_BATCH
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            begin = time.process_time()
            run()
            if number:  # the first round warms up
                taken[name].append((time.process_time() - begin) / batches * 1e6)
    differences = [e - p for e, p in zip(taken["elastic"], taken["plain"], strict=True)]
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "clock": "process time",
        "rounds": ROUNDS,
        "micro_batches_of_a_round": batches,
        "plain_us": round(medians["plain"], 1),
        "elastic_us": round(medians["elastic"], 1),
        "overhead_us": round(statistics.median(differences), 1),
        "overhead_us_range": [round(min(differences), 1), round(max(differences), 1)],
        "ratio": round(medians["elastic"] / medians["plain"], 3),
        "target_us": TARGET_US,
    }


def main() -> None:
    """Measure, print and save the figures."""
    torch.set_num_threads(1)
    result = {**measured(), "torch": torch.__version__, "errors": errors(), "costs": costs()}
    for row in result["errors"]:
        sizes = f"{row['global_batch']},{row['gpu_batch']},{row['gpus']}"
        ratio = row["mean_of_means"] / row["ours_float64"]
        print(
            f"gradient error {sizes}: {row['ours_float64']:.1e} (float32 {row['ours_float32']:.1e})"
            f"; baselines: mean of means {row['mean_of_means']:.1e} (ratio {ratio:.1e}), "
            f"0.4.1 {row['seed_mean']:.1e}, its sum {row['seed_sum']:.1e}"
        )
    cost = result["costs"]
    print(
        f"a micro-batch: {cost['elastic_us']} µs; baseline, the plain loop: {cost['plain_us']} µs; "
        f"ratio {cost['ratio']}; overhead {cost['overhead_us']} µs (at most {TARGET_US})"
    )
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
