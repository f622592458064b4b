"""Random numbers, texts and shapes, as tests of the original library drew them.

Knows nothing of training: seeds there are `runai.elastic`'s. Exported under the original names.
"""

from __future__ import annotations

import random as _random
import string as _string
from collections.abc import Sequence

choice = _random.choice


def number(a: int = 10, b: int = 100) -> int:
    """Draw an integer from a to b, both included."""
    return _random.randint(a, b)  # noqa: S311 - nothing secret


def string(length: int = 5, chars: Sequence[str] | None = None) -> str:
    """Draw a text of these characters; by default letters, digits and punctuation."""
    chars = chars or _string.ascii_letters + _string.digits + _string.punctuation
    return "".join(choice(chars) for _ in range(length))


def strings(count: int | None = None) -> list[str]:
    """Draw so many texts; by default 2 to 10."""
    return [string() for _ in range(number(2, 10) if count is None else count)]


def shape() -> tuple[int, ...]:
    """Draw the shape of a tensor: 2 to 4 dimensions of 2 to 5."""
    return tuple(number(2, 5) for _ in range(number(2, 4)))
