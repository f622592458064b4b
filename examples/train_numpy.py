"""Train a small network with NumPy so that a pause loses no work and changes no result.

A pattern for any job: keep a checkpoint in RUNAI_CHECKPOINT_DIR, save it and exit with 143 on
SIGTERM (the scheduler needs the GPU), and continue from it at the next start. The checkpoint has
weights, momentum, the random generator and the position in the epoch, so that the result is the
same bit for bit.

    python train_numpy.py --epochs 20 --seconds 1
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

# One thread: several threads sum in an order that depends on the machine's load.
for library in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(library, "1")

import numpy as np  # noqa: E402 - after the variables that it reads

STOPPED_BY_SIGTERM = 128 + signal.SIGTERM  # 143: "paused, not failed"

SAMPLES, FEATURES, HIDDEN, CLASSES = 16384, 64, 256, 4
BATCH, LEARNING_RATE, MOMENTUM = 64, 0.02, 0.9


def make_samples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw points and label them by a random curved rule."""
    random = np.random.default_rng(seed)
    points = random.normal(size=(SAMPLES, FEATURES))
    rule = random.normal(size=(FEATURES, CLASSES))
    labels = np.argmax(np.tanh(points @ rule) + 0.1 * points[:, :CLASSES] ** 2, axis=1)
    return points, labels


class Training:
    """The complete state of a training, as saved in the checkpoint."""

    def __init__(self, seed: int) -> None:
        """Start at the first batch of the first epoch."""
        self.random = np.random.default_rng(seed)
        shapes = {
            "in": (FEATURES, HIDDEN),
            "in_bias": (HIDDEN,),
            "out": (HIDDEN, CLASSES),
            "out_bias": (CLASSES,),
        }
        self.weights = {
            name: self.random.normal(scale=0.1, size=shape) for name, shape in shapes.items()
        }
        self.speed = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.epoch = 0
        self.batch = 0
        self.order = self.random.permutation(SAMPLES)
        self.loss_sum = 0.0
        self.losses: list[float] = []

    def step(self, points: np.ndarray, labels: np.ndarray) -> None:
        """Train on the next batch; shuffle again at the end of an epoch."""
        chosen = self.order[self.batch * BATCH : (self.batch + 1) * BATCH]
        loss, slopes = slopes_of_loss(self.weights, points[chosen], labels[chosen])
        for name, slope in slopes.items():
            self.speed[name] = MOMENTUM * self.speed[name] - LEARNING_RATE * slope
            self.weights[name] = self.weights[name] + self.speed[name]
        self.loss_sum += loss
        self.batch += 1
        if self.batch * BATCH >= SAMPLES:
            self.losses.append(self.loss_sum / self.batch)
            self.order = self.random.permutation(SAMPLES)
            self.epoch, self.batch, self.loss_sum = self.epoch + 1, 0, 0.0

    def save(self, path: Path) -> None:
        """Write the checkpoint to a new file and rename it, so that one is always complete."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        place = {
            "epoch": self.epoch,
            "batch": self.batch,
            "loss_sum": self.loss_sum,
            "losses": self.losses,
            "random": self.random.bit_generator.state,
        }
        with unfinished.open("wb") as file:
            np.savez(
                file,
                order=self.order,
                place=np.array(json.dumps(place)),
                **{f"weights_{name}": value for name, value in self.weights.items()},
                **{f"speed_{name}": value for name, value in self.speed.items()},
            )
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)

    def load(self, path: Path) -> None:
        """Restore the state from a checkpoint."""
        with np.load(path) as saved:
            place = json.loads(str(saved["place"]))
            self.order = saved["order"]
            self.weights = {name: saved[f"weights_{name}"] for name in self.weights}
            self.speed = {name: saved[f"speed_{name}"] for name in self.speed}
        self.epoch, self.batch = place["epoch"], place["batch"]
        self.loss_sum, self.losses = place["loss_sum"], place["losses"]
        self.random.bit_generator.state = place["random"]

    def fingerprint(self) -> str:
        """Return a hash of the weights, to compare results bit for bit."""
        digest = hashlib.sha256()
        for name in sorted(self.weights):
            digest.update(np.ascontiguousarray(self.weights[name]).tobytes())
        return digest.hexdigest()[:16]


def slopes_of_loss(
    weights: dict[str, np.ndarray], points: np.ndarray, labels: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the cross-entropy of one batch and its gradients."""
    hidden = np.tanh(points @ weights["in"] + weights["in_bias"])
    scores = hidden @ weights["out"] + weights["out_bias"]
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels]).mean())
    chances[rows, labels] -= 1
    down = chances / len(labels)
    back = (down @ weights["out"].T) * (1 - hidden**2)
    return loss, {
        "in": points.T @ back,
        "in_bias": back.sum(axis=0),
        "out": hidden.T @ down,
        "out_bias": down.sum(axis=0),
    }


def main() -> int:
    """Train, from a checkpoint if there is one; return 0 when done, 143 after SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="passes over the samples")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="an epoch takes at least so long"
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("RUNAI_ARRAY_INDEX", "0")))
    options = parser.parse_args()

    stop_requested = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stop_requested.set())

    folder = Path(os.environ.get("RUNAI_CHECKPOINT_DIR", "checkpoints"))
    checkpoint = folder / f"checkpoint-{os.environ.get('RANK', '0')}.npz"
    training = Training(options.seed)
    if checkpoint.exists():
        training.load(checkpoint)
        print(f"Going on at epoch {training.epoch + 1}, batch {training.batch + 1}.", flush=True)
    points, labels = make_samples(options.seed)

    while training.epoch < options.epochs:
        epoch, began = training.epoch, time.monotonic()
        while training.epoch == epoch:
            training.step(points, labels)
            if stop_requested.is_set():
                break
        if training.epoch > epoch:
            stop_requested.wait(options.seconds - (time.monotonic() - began))
            print(f"epoch {training.epoch:3} loss {training.losses[-1]:.6f}", flush=True)
        training.save(checkpoint)
        if stop_requested.is_set() and training.epoch < options.epochs:
            print(f"Stopped in epoch {training.epoch + 1}; the checkpoint is kept.", flush=True)
            return STOPPED_BY_SIGTERM

    result = {
        "epochs": training.epoch,
        "loss": training.losses[-1] if training.losses else None,
        "weights": training.fingerprint(),
    }
    (folder / "result.json").write_text(json.dumps(result) + "\n")
    print(f"Done: {json.dumps(result)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
