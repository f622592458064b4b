"""What is decided in hundreds of worlds stays what it was, but for changes that somebody wants.

A digest says in which cycle of which world something differs: `python tests/digests.py NUMBER`
tells that world in words, before the change and after it.
"""

from __future__ import annotations

import pytest

from digests import BATCH, NUMBERS, RECORDED, digest


@pytest.mark.parametrize("first", range(0, len(NUMBERS), BATCH), ids=lambda first: NUMBERS[first])
def test_worlds_go_as_they_were_recorded(first: int) -> None:
    for number, recorded in zip(NUMBERS[first : first + BATCH], RECORDED[first:], strict=False):
        assert digest(number) == recorded
