"""Rows of expected and measured values, and their arithmetic. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one experiment; `passed` is None if it is not judged, or was not run."""

    id: str
    what: str
    expected: str
    measured: str
    passed: bool | None = None

    @property
    def verdict(self) -> str:
        """Return `passed` as text."""
        return {True: "ok", False: "NOT AS EXPECTED", None: ""}[self.passed]


def not_run(id_: str, what: str, why: str) -> Row:
    """Return the row of an experiment that could not run."""
    return Row(id_, what, "", f"not run: {why}")


def fairness(rates: Sequence[float]) -> float:
    """Return the ratio of the largest to the smallest rate; 1 is fair.

    >>> fairness([2.0, 1.0, 1.5])
    2.0
    """
    return max(rates) / min(rates) if min(rates, default=0) > 0 else float("inf")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed.

    >>> percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.95)
    (2, 4)
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def mean_error(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean absolute error of pairs of true and measured values.

    >>> mean_error([(10, 12), (50, 49)])
    1.5
    """
    return statistics.fmean(abs(true - measured) for true, measured in pairs)


def shares(together: Sequence[float], alone: float) -> list[float]:
    """Return each rate relative to the rate of one process alone.

    >>> shares([50.0, 45.0], 100.0)
    [0.5, 0.45]
    """
    return [one / alone for one in together]


def as_percent(parts: Sequence[float]) -> str:
    """Format shares as percentages.

    >>> as_percent([0.5, 0.454])
    '50 %, 45 %'
    """
    return ", ".join(f"{100 * part:.0f} %" for part in parts)


def lines(rows: Sequence[Row]) -> list[str]:
    """Format rows for a terminal: experiment, expected, measured, verdict."""
    width = max((len(row.what) for row in rows), default=0)
    wide = max((len(row.expected) for row in rows), default=0)
    return [
        f"{row.id:4} {row.what:{width}}  {row.expected:{wide}}  {row.measured}"
        f"{f'  [{row.verdict}]' if row.verdict else ''}"
        for row in rows
    ]


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows for the JSON file."""
    return [asdict(row) for row in rows]
