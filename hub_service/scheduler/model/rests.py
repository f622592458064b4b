"""Rests in what concerns tens of thousands: between its pieces others may have the interpreter.

Pure: what is told of the end of a piece is the caller's. Used by `state` and `forecast`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

Rest = Callable[[], None]
"""Told between pieces of the work; it may take its time."""

_PIECE = 100
"""A few milliseconds, of the dearest."""


def at_once() -> None:
    """Go on without a rest."""


def with_rests(items: Iterable[T], rest: Rest) -> Iterator[T]:
    """Yield the items; tell `rest` after each hundred of them."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % _PIECE:
            rest()
