"""When those who cannot be let in now are to come again: one after the other, as fast as work goes.

If all of a rush were told the same time, they would all come again then, and asking would cost more
than what is asked for. Each refusal takes the next place after those that were told one before. And
who comes again when told goes before who has just come: else whoever had bad luck once would have
it again and again. Pure but for the time it is given. Kept by `fair_use`.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

SOONEST_S, LATEST_S = 2.0, 30.0
"""Who is told to wait longer than a client is patient would only give up."""
LOOK_BACK_S = 1.0
"""A rush is older than that when the first is refused: its pace is known, not that before it."""
AGAIN = 2.0
"""Times as fast as work goes those come again whose turn had come and who found all places taken:
at once, thousands of them would cost more than what they ask for."""
SLOWEST = 10.0
"""Done a second, at least: before anything is known, and after a pause."""
LATER = 1.5
"""Than told our clients come at most (`calls.Retries`), that not all come at once."""
GRACE_S = 5.0
"""And the answer is on its way to them, held for a moment."""
FIRST = 4
"""While others are on their way back, who has just come may fill a part of the places: enough that
none stands empty, whenever those come."""
MOST = 10_000
"""Turns that are remembered."""


class _Turn(NamedTuple):
    due: float
    until: float
    """Who has not come by then has given up."""


@dataclass
class Rush:
    """How fast work goes, and who comes again when; seconds of one clock."""

    _rate: float = SLOWEST
    """Done a second, lately."""
    _since: float = 0.0
    _done: int = 0
    """Since then."""
    _given_until: float = 0.0
    _again_until: float = 0.0
    _turns: dict[Hashable, _Turn] = field(default_factory=dict)

    def admits(self, who: Hashable, under_way: int, most: int, now: float) -> bool:
        """Tell whether somebody may begin beside so many; who is let in uses up their turn."""
        self._forget(now)
        turn = self._turns.get(who)
        is_due = turn is not None and turn.due <= now
        places = most if is_due or not self._turns else max(1, most // FIRST)
        if under_way >= places:
            return False
        self._turns.pop(who, None)
        return True

    def done(self, now: float) -> None:
        """Note that a piece of work is done."""
        self._done += 1
        self._look_back(now)

    def wait(self, who: Hashable, now: float) -> float:
        """Return in how many seconds somebody who is refused is to come again.

        Who comes before that is told the same time again, and keeps their turn if it is due and all
        places are taken nevertheless. None, who cannot be known again, has no turn.
        """
        self._look_back(now)
        turn = self._turns.pop(who, None)
        if turn is None:
            due = _within_bounds(self._given_until, now)
            self._given_until = due + 1 / self._rate
            wait = due - now
        elif turn.due > now:
            due = turn.due
            wait = max(SOONEST_S, due - now)
        else:
            due, again = turn.due, _within_bounds(self._again_until, now)
            self._again_until = again + 1 / (AGAIN * self._rate)
            wait = again - now
        if who is not None and len(self._turns) < MOST:
            self._turns[who] = _Turn(due, now + LATER * wait + GRACE_S)
        return wait

    def _forget(self, now: float) -> None:
        while self._turns and (first := next(iter(self._turns.items())))[1].until < now:
            del self._turns[first[0]]

    def _look_back(self, now: float) -> None:
        passed = now - self._since
        if passed >= LOOK_BACK_S:
            self._rate = max(SLOWEST, self._done / passed)
            self._since, self._done = now, 0


def _within_bounds(when: float, now: float) -> float:
    """Return the time nearest to `when` at which somebody may be told to come."""
    return min(max(when, now + SOONEST_S), now + LATEST_S)
