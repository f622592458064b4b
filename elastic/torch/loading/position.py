"""Position of a training in its data, and micro-batches as parts of an update.

A position is a loader's whole state: the order of an epoch follows from seed and epoch.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a job: samples before it are trained on, later ones unread."""

    epoch: int = 0
    samples: int = 0
    """Samples of this epoch trained on so far, over all ranks."""
    update: int = 0
    """Updates of the weights since the job began, over all epochs."""

    def after(self, samples: int, *, ends_epoch: bool) -> Position:
        """Return the position one update later."""
        if ends_epoch:
            return Position(self.epoch + 1, 0, self.update + 1)
        return Position(self.epoch, self.samples + samples, self.update + 1)


@dataclass(frozen=True, slots=True)
class SampleRange:
    """Consecutive samples of an update that form one micro-batch."""

    offset: int
    """Index of the first sample within the update."""
    size: int
    """Number of samples; 0: a placeholder sample of weight 0, so that collectives match."""
    number: int
    """Number of the part within the update; it determines the random numbers."""


class UpdateAbandoned(Exception):
    """Error: the update was given up after a rank's loss. The job's position is valid."""


class Divider(Hashable, Protocol):
    """The division of an update by ranks (`parallel`) or virtual workers (`virtual`); hashable."""

    def parts(self, total: int) -> tuple[SampleRange, ...]:
        """Return this rank's parts of an update of `total` samples; at least one."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One part of an update, with its weight and place in the update."""

    part: SampleRange
    total: int
    """Samples of the update, over all ranks."""
    weight: float
    """Weight of its mean in the update's mean."""
    unit: float
    """Weight of one sample (or token) in the update's mean."""
    first: bool
    last: bool
    """True for this rank's last one of the update."""
    ends_epoch: bool


@lru_cache(maxsize=64)
def micro_batches(
    divider: Divider, total: int, *, ends_epoch: bool = False
) -> tuple[MicroBatch, ...]:
    """Return this rank's micro-batches of an update, weighted by samples."""
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
