"""More small worlds than the suite has: which of them notices a mutant that no test did?

Used by `mutants --search`; what it finds is recorded with the others (`stories.FOUND`).
"""

from __future__ import annotations

import signal
import time
from collections import Counter

from stories import NUMBERS, story


class Worlds:
    """What is told of worlds that are not recorded, by the scheduler as it is."""

    def __init__(self, count: int) -> None:
        """Let so many worlds live."""
        numbers = [number for number in range(200, 200 + count) if number not in NUMBERS]
        self._told = {number: story(number) for number in numbers}
        self.noticed: Counter[int] = Counter()
        """How many mutants each has noticed."""

    def that_notices(self, cpu_s: float) -> int | None:
        """Give one that goes another way by now; those that noticed others come first."""
        signal.signal(signal.SIGVTALRM, _too_long)
        ends = time.process_time() + cpu_s
        for number in sorted(self._told, key=lambda number: -self.noticed[number]):
            if time.process_time() > ends:
                return None
            signal.setitimer(signal.ITIMER_VIRTUAL, 5)
            try:
                if story(number) != self._told[number]:
                    return number
            except Exception:  # noqa: BLE001  whatever happens in there, the story would have failed
                return number
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return None


def _too_long(_number: int, _frame: object) -> None:
    raise TimeoutError
