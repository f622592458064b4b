"""How much people may ask: what the operator sets, and `request_limits` and `job_limit` keep."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the operator allows; 0: as much as anybody likes."""

    calls_per_s: int = 0
    """Of one person, on average."""
    open_at_once: int = 0
    """Calls and streams of one person that are under way."""
    submissions_at_once: int = 0
    """Of all persons together: more would wait longer than their clients do."""
    unfinished_jobs: int = 0
    """Of one person: an array that would be too many is refused whole."""
