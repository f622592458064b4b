"""Past workloads, assembled from their series, events and requests.

Several workloads may have used a name one after another; each has a separate series. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class PastRequest(NamedTuple):
    """The request of a workload."""

    submitted: int
    """Unix seconds, rounded down as in snapshots."""
    text: str
    """The request as one line of JSON (`runai.hub_service.model.request_codec`)."""
    starts: int
    """Number of starts."""


@dataclass(frozen=True, slots=True)
class PastWorkloadRecord:
    """A workload in the ledger's history, deleted or not."""

    workload: str
    project: str
    user: str
    submitted: float
    """Time of submission; if unknown, time of the first event or allocation."""
    runtime_s: float
    allocated_s: float
    """GPU-seconds."""
    is_session: bool
    """True if it has an `ended` event, which only sessions have."""
    request: str = ""
    """The request (`PastRequest.text`); "" if it was never stored."""
    starts: int = 1


def past_of(
    row: Any,  # noqa: ANN401  a row of a query
    events: Sequence[tuple[float, str]],
    requests: Iterable[PastRequest],
) -> PastWorkloadRecord:
    """Build a past workload from its series, and the events and requests of its name.

    Its own events lie between the deletions of an earlier workload of that name and of itself.
    """
    opened = row["opened"]
    start = max(
        (n + 1 for n, (at, kind) in enumerate(events) if kind == "deleted" and at < opened),
        default=0,
    )
    own_events = events[start:]
    stop = next((n for n, (_, kind) in enumerate(own_events) if kind == "deleted"), len(own_events))
    first_event_at = own_events[0][0] if own_events[:stop] else opened
    # The newest request before the first allocation: a workload is submitted before it starts.
    request = max((each for each in requests if each.submitted <= opened), default=None)
    return PastWorkloadRecord(
        row["workload"],
        row["project"],
        row["user"],
        min(first_event_at, opened) if request is None else request.submitted,
        row["held_s"],
        row["allocated_s"],
        any(kind == "ended" for _, kind in own_events[:stop]),
        "" if request is None else request.text,
        1 if request is None else request.starts,
    )
