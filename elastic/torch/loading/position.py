"""Position of a training in its data, and micro-batches as parts of an update.

A position is all that must be saved of a loader: the order of an epoch follows from seed and epoch.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Position:
    """Say how far the job is: nothing before is repeated, nothing after was seen."""

    epoch: int = 0
    samples: int = 0
    """Samples of this epoch that have been trained on, over all ranks."""
    update: int = 0
    """Updates of the weights since the job began, over all epochs."""

    def after(self, samples: int, *, ends_epoch: bool) -> Position:
        """Return the position one update later."""
        if ends_epoch:
            return Position(self.epoch + 1, 0, self.update + 1)
        return Position(self.epoch, self.samples + samples, self.update + 1)


@dataclass(frozen=True, slots=True)
class Part:
    """Some consecutive samples of an update, as much as is computed at a time."""

    offset: int
    """Where they begin among the samples of the update."""
    size: int
    """How many there are; 0: a sample is computed for company's sake, and weighs nothing."""
    number: int
    """Which part of the update it is: what its random numbers depend on."""


class GivenUp(Exception):
    """The update was given up, because a rank is gone: go on from the job's position."""


class Divider(Hashable, Protocol):
    """Who divides an update: by ranks (`parallel`) or by virtual workers (`virtual`); a value."""

    def parts(self, total: int) -> tuple[Part, ...]:
        """Return this rank's parts of an update of `total` samples; at least one."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One part of one update, with what the job must know of the update."""

    part: Part
    total: int
    """Samples of the update, over all ranks."""
    weight: float
    """What its mean is worth in the mean of the update."""
    unit: float
    """What one sample (or token) is worth in it."""
    first: bool
    last: bool
    """Whether it is this rank's last one of the update."""
    ends_epoch: bool


@lru_cache(maxsize=64)
def micro_batches(
    divider: Divider, total: int, *, ends_epoch: bool = False
) -> tuple[MicroBatch, ...]:
    """Give this rank's micro-batches of an update, weighted by samples."""
    parts = divider.parts(total)
    return tuple(
        MicroBatch(
            part=part,
            total=total,
            weight=part.size / total,
            unit=1 / total if part.size else 0.0,
            first=place == 1,
            last=place == len(parts),
            ends_epoch=ends_epoch,
        )
        for place, part in enumerate(parts, 1)
    )
