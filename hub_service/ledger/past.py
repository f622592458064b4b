"""Workloads of the past: their rows, events and requests, matched and read.

A name may have had several workloads, one after the other; each has a series of its own. Pure:
knows no database.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """The request of a workload."""

    submitted: int
    """Unix seconds, rounded down as a snapshot's are."""
    text: str
    """A line of JSON (`runai.hub_service.model.request_codec`)."""
    starts: int
    """How often it was started."""


@dataclass(frozen=True, slots=True)
class Past:
    """A workload as the ledger remembers it, whether or not it is still there."""

    workload: str
    project: str
    user: str
    submitted: float
    """When it was submitted; where that is not known, when it was first heard of, or held."""
    held_s: float
    allocated_s: float
    """GPU-seconds."""
    is_session: bool
    """Whether it ended as only sessions do."""
    asked: str = ""
    """What it asked for (`Asked.text`); "" where that was never stored."""
    starts: int = 1


def past_of(row: Any, life: Sequence[tuple[float, str]], requests: Iterable[Asked]) -> Past:  # noqa: ANN401  a row of a query
    """Find the events of this workload among all events of its name."""
    opened = row["opened"]
    start = max(
        (n + 1 for n, (at, kind) in enumerate(life) if kind == "deleted" and at < opened), default=0
    )
    own = life[start:]
    stop = next((n for n, (_, kind) in enumerate(own) if kind == "deleted"), len(own))
    first = own[0][0] if own[:stop] else opened
    # It asked before it held anything.
    asked = max((one for one in requests if one.submitted <= opened), default=None)
    return Past(
        row["workload"],
        row["project"],
        row["user"],
        min(first, opened) if asked is None else asked.submitted,
        row["held_s"],
        row["allocated_s"],
        any(kind == "ended" for _, kind in own[:stop]),
        "" if asked is None else asked.text,
        1 if asked is None else asked.starts,
    )
