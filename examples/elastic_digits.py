"""Classify scikit-learn's digits with a small residual network, at any number of GPUs.

    python elastic_digits.py
    python -m runai.elastic.run --min 1 --max 4 elastic_digits.py       resized while it runs
    torchrun --nproc-per-node 4 elastic_digits.py                       a fixed number
    runai submit digits --elastic --workers 4 -- python elastic_digits.py

The result is the same in each case, except for rounding: an update has 256 digits, and a GPU holds
64 at a time. On the platform and under the launcher the training continues from its checkpoint.
Lines with a `*` make a plain training elastic.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import runai.elastic
import runai.elastic.torch as elastic  # *

TRAINING = 1500
"""Digits in the training set; the remaining 297 are the test set."""


class Residual(nn.Module):
    """A residual block of two convolutions, with GroupNorm, which works for any batch size."""

    def __init__(self, channels):
        """Keep the number of channels."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
        )

    def forward(self, x):
        """Add what the layers find."""
        return torch.relu(x + self.layers(x))


def network():
    """Make the model: 8 x 8 pixels to ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        Residual(16),
        nn.MaxPool2d(2),
        Residual(16),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def main():
    """Train, and print loss and accuracy on the test set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    epochs = parser.parse_args().epochs

    elastic.init(256, 64)  # * samples of an update, samples that one GPU holds
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)

    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    updates = epochs * -(-TRAINING // 256)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=updates + 1)
    job = elastic.Job(model, optimizer, scheduler=schedule)  # *
    loader = elastic.DataLoader(TensorDataset(images[:TRAINING], labels[:TRAINING]))  # *

    for epoch in job.epochs(epochs):  # *
        for x, y in loader:
            loss = nn.functional.cross_entropy(job.model(x.to(device)), y.to(device))
            job.backward(loss)  # * instead of loss.backward()
            job.step(clip_norm=1.0)  # * instead of clipping, optimizer.step(), schedule.step() …
        if runai.elastic.master:
            print(f"epoch {epoch + 1}: {runai.elastic.gpus} at work", flush=True)

    if runai.elastic.master:
        with torch.no_grad():
            scores = model(images[TRAINING:].to(device)).cpu()
        test_loss = nn.functional.cross_entropy(scores, labels[TRAINING:])
        read = (scores.argmax(1) == labels[TRAINING:]).float().mean()
        print(f"after {job.update} updates: test loss {test_loss:.4f}, {read:.1%} read", flush=True)


if __name__ == "__main__":
    main()
