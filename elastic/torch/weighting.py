"""Weigh micro-batches by what their losses are means of, other than samples: tokens.

Knows that the total of an update must be known before its first backward pass: the mean of means of
ragged batches is not their mean. Called by `loading`, which has the micro-batches at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from runai.elastic.torch.position import MicroBatch

T = TypeVar("T")


class _Summing(Protocol):
    def total(self, number: float) -> float:
        """Sum a number over all ranks."""


def weigh(
    update: Sequence[tuple[MicroBatch, T]], count: Callable[[T], int], ranks: _Summing
) -> list[tuple[MicroBatch, T]]:
    """Weigh this rank's micro-batches of an update by their counts, against those of all ranks.

    Returns:
        The micro-batches with new weights; all of them 0 where nothing at all is counted.
    """
    counts = [float(count(batch)) if micro.part.size else 0.0 for micro, batch in update]
    total = ranks.total(sum(counts))
    return [
        (
            replace(
                micro,
                weight=counted / total if total else 0.0,
                unit=1 / total if total and micro.part.size else 0.0,
            ),
            batch,
        )
        for (micro, batch), counted in zip(update, counts, strict=True)
    ]
