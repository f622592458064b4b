"""A part of the event loop's time for each who asks.

One loop serves everybody, one step after the other: whoever has more calls under way than others
takes more of it, and a step of a large call is as long as twenty small ones. Kept by `fair_use`,
fed by `metering`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar

held: ContextVar[bool] = ContextVar("held", default=False)
"""Whether whoever asks in this context is made to wait for others."""

FULL_S = 0.3
"""What somebody who was quiet may take at once: a page of the largest installation."""
MOST_OWED_S = 1.0
"""A single call that took longer is forgiven the rest."""
USUAL_S = 0.01
"""What a call takes as long as nothing is known of its caller."""
LATELY_S = 1.5
"""What was taken longer ago counts for less and less."""
ASKS_S = 2.0
"""Whoever has taken nothing for so long asks for nothing now."""
MANY = 32
"""Calls at the door at once are a flood from the start: no page asks for so many."""
FEW = 8
"""Calls at the door, of a page or of a few: who asks for no more may have what others leave."""
FLOODS_S = 2.0
"""For so long somebody is taken for a flood who was one, or was refused for asking too often."""
TURNS_ABOVE = 0.1
"""Of the time: of the calls of who has lately taken more than that, beside others, `STEPS` go on in
each turn of the loop. Turns have their price, and who takes less holds nobody up."""
STEPS = 3
"""A few milliseconds. Of one, somebody who asks fifteen times a second needs 250 turns: on a busy
machine there are not many more, and whoever falls behind then does so ever further."""
TOGETHER = 0.8
"""Of the time that is there for those who ask: streams and decisions have theirs besides."""
LOOK_EVERY_S = 0.1
SOONEST_S = 0.001


class Shares:
    """Everybody's part of the time: an even one beside others, and the least one for who floods.

    Who asks for few things at once has what others leave, too. Nobody begins to wait who takes no
    more than that, and nobody is held to less than `least`. A flood is told by how much is asked
    for, not by how much time it takes: who is held takes little, and beside a flood somebody else's
    few, dear calls may well take more than it does.
    """

    def __init__(self, least: float, clock: Callable[[], float]) -> None:
        """Give everybody at least such a part of the time, by a clock in seconds."""
        self._least, self._clock = least, clock
        self._asking: set[Share] = set()
        self._looked = -math.inf

    def new(self) -> "Share":
        """Return the share of somebody who has just come."""
        return Share(self, self._clock)

    def took(self, share: "Share") -> None:
        """Note that somebody asks, and has taken something of the time."""
        self._asking.add(share)

    def is_alone(self, share: "Share") -> bool:
        """Tell whether nobody asks beside somebody."""
        now = self._clock()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            # Not a new set: shares add themselves to this one.
            self._asking -= {one for one in self._asking if not one.asks(now)}
        return len(self._asking) <= (share in self._asking)

    def part(self, share: "Share") -> float:
        """Return how much of the time somebody may have now."""
        if self.is_alone(share):
            return 1.0
        others, now = self._asking - {share}, self._clock()
        even = max(self._least, 1.0 / (len(others) + 1))
        if share.floods(now):
            return even if all(one.floods(now) for one in others) else self._least
        if share.rate(now) <= even and not share.is_held(now):
            return 1.0
        part = even
        if share.waiting <= FEW:
            # Somebody who needs half of the time beside many who need next to nothing would else
            # fall behind, and nobody use what is left.
            part = max(even, TOGETHER - sum(one.rate(now) for one in others))
        # And no less while they are held: else who wants a little more would wait for ever longer.
        return part if share.is_held(now) or share.rate(now) > part else 1.0


class Share:
    """Somebody's part of the time, which fills up again while time passes.

    Who has used it up waits, first come, first served. What a call takes is known afterwards: until
    then as much is set aside for it as its caller's calls take.
    """

    def __init__(self, shares: Shares, clock: Callable[[], float]) -> None:
        """Begin with a full one."""
        self._shares, self._clock = shares, clock
        self._left, self._at = FULL_S, clock()
        self._lately, self._lately_at = 0.0, self._at
        self._usual = USUAL_S
        self._held_at = -math.inf
        """When somebody was last made to wait for others."""
        self._flooded_at = -math.inf
        """When they last asked too often, or for too much at once."""
        self.waiting = 0
        """Calls at the door."""
        self._in_turn = asyncio.Lock()
        self._steps = asyncio.Semaphore(STEPS)
        """Taken for the rest of the turn of the loop in which a step was taken."""

    def asks(self, now: float) -> bool:
        """Tell whether there is anything to do for its owner, or was just now."""
        return self.waiting > 0 or now - self._lately_at < ASKS_S

    def rate(self, now: float) -> float:
        """Return the part of the time that was taken lately."""
        return self._lately * math.exp((self._lately_at - now) / LATELY_S) / LATELY_S

    def is_held(self, now: float) -> bool:
        """Tell whether its owner is, or was just now, made to wait for others."""
        return now - self._held_at < ASKS_S

    def floods(self, now: float) -> bool:
        """Tell whether its owner asks for more than anybody who works with this needs."""
        return self.waiting > MANY or now - self._flooded_at < FLOODS_S

    def flooded(self) -> None:
        """Note that its owner asks too often, or for too much at once."""
        self._flooded_at = self._clock()

    def wait_s(self) -> float:
        """Return how long one more would wait, as things are; 0: it would not."""
        part = self._shares.part(self)
        lacks = self.waiting * self._usual - self._filled(part)
        if lacks > 0:
            self._hold(part)
        return max(0.0, lacks) / part

    async def enter(self) -> float:
        """Return when there is something left; the seconds that are set aside."""
        self.waiting += 1
        if self.waiting > MANY:
            self.flooded()
        try:
            await self._in_turn.acquire()
            try:
                while (left := self._filled(part := self._shares.part(self))) <= 0:
                    self._hold(part)
                    # Time fills it, and others may come or go meanwhile.
                    await asyncio.sleep(min(LOOK_EVERY_S, max(SOONEST_S, -left / part)))
            finally:
                # Not before the loop's next turn: fifty that come at once would all be begun in
                # this one, and everybody else be served after them.
                asyncio.get_running_loop().call_soon(self._in_turn.release)
        finally:
            self.waiting -= 1
        self._left -= self._usual
        return self._usual

    async def turn(self) -> None:
        """Wait for the steps that who takes much has in each turn, first come, first served.

        Of fifteen calls under way each would take one, and everybody else's wait for all of them.
        """
        if self._lately < TURNS_ABOVE * LATELY_S or self._shares.is_alone(self):
            return
        await self._steps.acquire()
        asyncio.get_running_loop().call_soon(self._steps.release)

    def spend(self, seconds: float) -> None:
        """Note that a step has taken so long."""
        now = self._clock()
        self._left = max(-MOST_OWED_S, self._left - seconds)
        self._lately = self.rate(now) * LATELY_S + seconds
        self._lately_at = now
        self._shares.took(self)

    def leave(self, aside: float, spent: float) -> None:
        """Note what a call took in the end."""
        self._left += aside
        self._usual += (spent - self._usual) / 8

    def _hold(self, part: float) -> None:
        if part < 1.0:
            self._held_at = self._clock()

    def _filled(self, part: float) -> float:
        now = self._clock()
        self._left = min(FULL_S, self._left + (now - self._at) * part)
        self._at = now
        return self._left


class Together:
    """Those who wait for the same, and pay for it together: each for as much as they brought."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self._brought = 0

    async def told(self, event: Awaitable[None], brought: int, *, within_s: float) -> float:
        """Wait for what happens to all at once, but not for ever; return one's part of it."""
        self._brought += brought
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await event
            return brought / self._brought
        finally:
            # When all whom this turn of the loop wakes have counted each other.
            asyncio.get_running_loop().call_soon(self._gone, brought)

    def _gone(self, brought: int) -> None:
        self._brought -= brought
