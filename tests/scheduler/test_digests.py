"""Digests of the decisions in hundreds of worlds, which change only on purpose.

A digest identifies the cycle and the world that differ: `python tests/digests.py NUMBER` prints
that world in words, before the change and after it.
"""

from __future__ import annotations

import pytest

from digests import BATCH, NUMBERS, RECORDED, digest


@pytest.mark.parametrize(
    "batch_start", range(0, len(NUMBERS), BATCH), ids=lambda start: NUMBERS[start]
)
def test_scheduler_decisions_of_each_batch_match_the_recorded_digests(batch_start: int) -> None:
    numbers = NUMBERS[batch_start : batch_start + BATCH]
    for number, recorded in zip(numbers, RECORDED[batch_start:], strict=False):
        assert digest(number) == recorded
