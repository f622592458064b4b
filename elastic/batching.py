"""Exact division of a global batch among any number of workers (the plan).

Sizes and offsets are integers, weights fractions; no framework is imported.
Rules: docs/dev/elastic.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True)
class BatchPlan:
    """The division of one update's samples into micro-batches of each rank.

    Every rank has the same number of micro-batches, so that collectives stay matched; sizes over
    all ranks differ by one at most and may be 0 where there are more ranks than samples.
    """

    global_batch: int
    """Samples of the update, over all ranks."""
    max_gpu_batch: int
    """The most samples of one device's micro-batch."""
    micro_batches: tuple[tuple[int, ...], ...]
    """Samples of each micro-batch, by rank."""

    @property
    def ranks(self) -> int:
        """Number of ranks that share the update."""
        return len(self.micro_batches)

    @property
    def steps(self) -> int:
        """Number of micro-batches that each rank accumulates."""
        return len(self.micro_batches[0])

    @property
    def batch_size(self) -> int:
        """The largest micro-batch of any rank."""
        return max(self.micro_batches[0])

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Number of samples of each rank."""
        return tuple(sum(sizes) for sizes in self.micro_batches)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Index of each rank's first sample within the update."""
        return tuple(sum(self.shares[:rank]) for rank in range(self.ranks))

    def weight(self, rank: int, step: int) -> Fraction:
        """Return the weight of a micro-batch's mean in the update's mean."""
        return Fraction(self.micro_batches[rank][step], self.global_batch)


def plan_batches(global_batch: int, max_gpu_batch: int, ranks: int = 1) -> BatchPlan:
    """Divide a global batch among ranks, with as few micro-batches as their devices allow.

    Args:
        global_batch: samples of one update, over all ranks.
        max_gpu_batch: the most samples of one device's micro-batch.
        ranks: workers, one device each.

    Raises:
        TypeError: if one of them is not an integer.
        ValueError: if one of them is below 1.

    >>> plan_batches(256, 64, 3).micro_batches
    ((43, 43), (43, 42), (43, 42))
    >>> plan_batches(100, 32).micro_batches
    ((25, 25, 25, 25),)
    """
    named: dict[str, object] = {
        "global batch size": global_batch,
        "GPU batch size": max_gpu_batch,
        "ranks": ranks,
    }
    for name, value in named.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"The {name} must be an integer, not {value!r}.")
        if value < 1:
            raise ValueError(f"The {name} must be at least 1, not {value}.")
    shares = split(global_batch, ranks)
    steps = -(-shares[0] // max_gpu_batch)
    return BatchPlan(global_batch, max_gpu_batch, tuple(split(share, steps) for share in shares))


def split(total: int, parts: int) -> tuple[int, ...]:
    """Divide a number into parts that differ by one at most, the larger ones first.

    >>> split(11, 3)
    (4, 4, 3)
    """
    quotient, remainder = divmod(total, parts)
    return (quotient + 1,) * remainder + (quotient,) * (parts - remainder)
