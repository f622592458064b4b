"""What a project says about idle GPUs, for its sessions and for its jobs.

Plain data, in seconds. By default one is shown and told; nothing is taken until a project says so.
"""

from dataclasses import dataclass

IDLE_BELOW = 0.01
"""A workload that keeps less of every device busy is idle, whatever memory it holds."""

KEEP_S = 30 * 60
"""What "keep" adds to the time, and how often it may be asked for in one idle stretch."""
KEEPS = 2

NEVER_USED_S = 15 * 60
"""After so long without any program on the GPU it was never used: where a project releases."""


@dataclass(frozen=True, slots=True)
class IdleRules:
    """After how many seconds of idleness what happens; None is never."""

    badge_s: int | None = 5 * 60
    """It is shown as idle."""
    notify_s: int | None = 20 * 60
    """Its owner is told."""
    release_s: int | None = None
    """Its GPUs go to others; the notebook server and its files stay. Sessions only."""
    stop_s: int | None = None
    """It is stopped."""


FOR_SESSIONS = IdleRules()
FOR_JOBS = IdleRules(notify_s=None)
