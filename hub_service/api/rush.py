"""When those who cannot be let in now are to come again: one after the other, as fast as work goes.

If all of a rush were told the same time, they would all come again then, and asking would cost more
than what is asked for. Each refusal takes the next place after those that were told one before.
Pure but for the time it is given. Kept by `fair_use`.
"""

from dataclasses import dataclass

__all__ = ["Rush"]

SOONEST_S, LATEST_S = 2.0, 30.0
"""Who is told to wait longer than a client is patient would only give up."""
LOOK_BACK_S = 5.0
SLOWEST = 10.0
"""Done a second, at least: before anything is known, and after a pause."""


@dataclass
class Rush:
    """How fast work goes, and until when places are given away; seconds of one clock."""

    _rate: float = SLOWEST
    """Done a second, lately."""
    _since: float = 0.0
    _done: int = 0
    """Since then."""
    _given_until: float = 0.0

    def done(self, now: float) -> None:
        """Note that a piece of work is done."""
        self._done += 1
        self._look_back(now)

    def wait(self, now: float) -> float:
        """Return in how many seconds somebody who is refused is to come again."""
        self._look_back(now)
        place = min(max(self._given_until, now + SOONEST_S), now + LATEST_S)
        self._given_until = place + 1 / self._rate
        return place - now

    def _look_back(self, now: float) -> None:
        passed = now - self._since
        if passed >= LOOK_BACK_S:
            self._rate = max(SLOWEST, self._done / passed)
            self._since, self._done = now, 0
