"""Random numbers that depend on the sample or the update, not on the rank.

Generators are seeded before each forward pass and each load of a sample: no state must be saved.
"""

from __future__ import annotations

import random
import sys

import torch

_MASK = 2**64 - 1


def key(*parts: int) -> int:
    """Hash integers to 64 bits; each bit depends on all bits of the input.

    The finalizer is splitmix64's (Steele, Lea, Flood: Fast splittable pseudorandom number
    generators, OOPSLA 2014).

    >>> key(0, 1) != key(1, 0)
    True
    """
    mixed = 0
    for part in parts:
        mixed = (mixed ^ part) + 0x9E3779B97F4A7C15 & _MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        mixed ^= mixed >> 31
    return mixed


def seed_torch(seed: int) -> None:
    """Seed PyTorch's generators of the CPU and the current device.

    Before CUDA is initialized, `torch.manual_seed` takes 0.4 ms and queues a call.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)


def seed_everything(seed: int) -> None:
    """Seed the generators that a data set may use: PyTorch's, Python's, and NumPy's if imported."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
