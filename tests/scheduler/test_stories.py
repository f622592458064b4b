"""What is decided in small worlds stays what it was, but for changes that somebody wants.

These notice that something differs; which rule it breaks, the other tests say.
"""

from __future__ import annotations

import pytest

from stories import NUMBERS, RECORD, story

TOLD = dict(
    zip(NUMBERS, RECORD.read_text(encoding="utf-8").split("story ")[1:], strict=True),
)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_story_goes_as_it_was_recorded(number: int) -> None:
    assert story(number) == f"story {TOLD[number]}"
