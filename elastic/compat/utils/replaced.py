"""Errors for what the original library had and today's frameworks have by themselves.

Knows how such an error reads. Called by `runai.profiler` and `runai.mp`.
"""

from __future__ import annotations

from typing import NoReturn


class Replaced(NotImplementedError):
    """A name of runai 0.4.1 that does not work any more; the text says what does."""


def replaced(name: str, why: str, instead: str) -> NoReturn:
    """Refuse a name, with the reason and the way out.

    Raises:
        Replaced: always.
    """
    raise Replaced(f"{name} does not work any more: {why}. Instead: {instead}.")
