"""Try one of 20 choices of hyper-parameters: the job of an array with RUNAI_ARRAY_INDEX 0 to 19.

    runai submit sweep --array 20 --gpus 0.5 -- python sweep.py

Writes what came of it to `sweep/<number>.json`, which is also the checkpoint: a job that is paused
before it is done (SIGTERM) begins anew, and one that was done before does nothing again.
"""

import itertools
import json
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # many of these run beside each other

import numpy as np

CHOICES = list(itertools.product((0.003, 0.01, 0.03, 0.1, 0.3), (2, 4, 8, 16)))
"""Pairs of learning rate and width of the hidden layer."""


def loss_of(rate: float, width: int, steps: int = 2000) -> float:
    """Fit one period of a sine with a small network; return the mean square error."""
    random = np.random.default_rng(1)
    x = np.linspace(-1, 1, 64)[:, None]
    y = np.sin(np.pi * x)
    w1, b1 = random.normal(size=(1, width)), np.zeros(width)
    w2, b2 = random.normal(size=(width, 1)) / np.sqrt(width), np.zeros(1)
    for _ in range(steps):
        hidden = np.tanh(x @ w1 + b1)
        error = (hidden @ w2 + b2 - y) / len(x)
        back = error @ w2.T * (1 - hidden**2)
        w2, b2 = w2 - rate * hidden.T @ error, b2 - rate * error.sum(0)
        w1, b1 = w1 - rate * x.T @ back, b1 - rate * back.sum(0)
    return float(np.mean((np.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2))


def main() -> None:
    """Train with this job's hyper-parameters, unless its result exists."""
    number = int(os.environ.get("RUNAI_ARRAY_INDEX", "0"))
    rate, width = CHOICES[number]
    result = Path("sweep") / f"{number}.json"
    if not result.exists():
        record = {"rate": rate, "width": width, "loss": loss_of(rate, width)}
        result.parent.mkdir(exist_ok=True)
        fresh = result.with_suffix(".new")
        fresh.write_text(json.dumps(record))
        fresh.replace(result)
    print(result.read_text())


if __name__ == "__main__":
    main()
