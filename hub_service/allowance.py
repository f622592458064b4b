"""How much people may ask: what the operator sets, and `fair_use` and `job_limit` keep."""

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
    time_percent: int = 0
    """Of the time in which the service can answer anybody, one person's part; 0 or 100: all."""
    unfinished_jobs: int = 0
    """Of one person: an array that would be too many is refused whole."""
