"""Progress that a job reports (`runai.reporter`): metrics, parameters and epochs.

Parses the reporter's JSON, which the job writes and which may hold anything. Pure.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

PROGRESS_FILE = "progress.json"
"""File name in the job's checkpoint directory; `runai.reporter` writes it."""

MAX_NAMES = 100
MAX_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """Newest metrics and parameters that a job reported, by name."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that change, NaN and infinities too."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Texts that stay the same."""

    @property
    def epochs(self) -> tuple[float, float] | None:
        """Return the finished epochs and their total; None if not reported."""
        return self._part_of("epoch", "overall_epochs")

    @property
    def cells(self) -> tuple[float, float] | None:
        """Return a notebook's finished cells and their number; None if it is no notebook."""
        return self._part_of("finished_cells", "cells")

    def _part_of(self, name: str, whole: str) -> tuple[float, float] | None:
        done, total = self.metrics.get(name), self.metrics.get(whole)
        if done is None or total is None or not (0 <= done <= total and 0 < total < math.inf):
            return None
        return done, total


def read_progress(content: bytes) -> Progress | None:
    """Parse a progress file without its invalid entries; None if all are.

    >>> read_progress(b'{"metrics": {"loss": 0.5, "bad": "x"}, "parameters": {"by": "Adam"}}')
    Progress(metrics={'loss': 0.5}, parameters={'by': 'Adam'})
    >>> read_progress(b'{"metr') is None
    True
    """
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    metrics = {
        name: number
        for name, value in _named(fields.get("metrics"))
        if (number := _number(value)) is not None
    }
    parameters = {
        name: _printable(value)
        for name, value in _named(fields.get("parameters"))
        if isinstance(value, str)
    }
    return Progress(metrics, parameters) if metrics or parameters else None


def _named(values: object) -> Iterator[tuple[str, object]]:
    """Yield printable names with their values, MAX_NAMES at most; keys of JSON are strings."""
    for name, value in list(values.items())[:MAX_NAMES] if isinstance(values, dict) else ():
        if printable_name := _printable(name):
            yield printable_name, value


def _number(value: object) -> float | None:
    """Return a JSON number as a float; None: it is none, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON's integers are unbounded
        return None


def _printable(text: str) -> str:
    """Remove characters that would move a terminal's cursor."""
    return "".join(letter for letter in text[:MAX_CHARACTERS] if letter.isprintable())
