"""Identities of workloads: new ones, and the refusal of requests that mean an earlier workload."""

import secrets
from datetime import datetime
from uuid import UUID

from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.errors import Conflict

_TIMED = 7
"""Version of UUIDs that begin with their time in milliseconds (RFC 9562)."""


def new_uid(submitted: float) -> str:
    """Return a random UUID with the time of a submission, which a refusal names later.

    >>> submitted_at(new_uid(1_764_450_300.25))
    1764450300.25
    """
    random = secrets.randbits(74)
    high = (int(submitted * 1000) << 16) | (_TIMED << 12) | (random >> 62)
    return str(UUID(int=(high << 64) | (0b10 << 62) | (random & ((1 << 62) - 1))))


def submitted_at(uid: str) -> float | None:
    """Return the time in a uid; None if it has none, as the UIDs of Kubernetes."""
    try:
        parsed = UUID(uid)
    except ValueError:
        return None
    return (parsed.int >> 80) / 1000 if parsed.version == _TIMED else None


def refuse_other(record: WorkloadRecord, uid: str) -> None:
    """Raise Conflict if a request means an earlier workload of the same name; "": it means any."""
    if uid in ("", record.uid):
        return
    earlier, subject = submitted_at(uid), f"The {record.id} that you mean"
    if earlier is not None and earlier <= record.submitted:  # else the caller made it up
        subject = f"{record.id} of {_clock(earlier)}"
    raise Conflict(
        f"{subject} is gone: this is another one, submitted by {record.spec.user} at"
        f" {_clock(record.submitted)}.",
        hint="Nothing was done. Look at it again first.",
        code="another_workload",
    )


def _clock(at: float) -> str:
    time = datetime.fromtimestamp(at).astimezone()
    return f"{time:%H:%M} on {time.day} {time:%B}"
