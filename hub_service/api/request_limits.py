"""Request limits: how often one person may call, and how much may be under way.

Plain ASGI, before anything is parsed: a refusal costs next to nothing. Callers are told apart by
the name behind what they show (token or cookie), as soon as the API has found that out. Knows
nothing of what is asked. Made by `app`, told by `identification` who calls.
"""

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import NamedTuple
from weakref import WeakValueDictionary

from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limits import RateLimitItemPerSecond
from runai.hub_service.allowance import Allowance
from runai.hub_service.errors import RunaiError, TooMany, Unavailable

WINDOW_S = 5
"""Whoever was quiet may ask for as much at once as they may in this time."""
STRANGERS = 10
"""Times one person's rate: everybody together whose credential is not known yet."""
AT_ONCE = 2
"""Calls of one person that are worked on: what comes beside them waits."""
BUSY_S, OPEN_S = 2.0, 5.0
"""When to come again, where no window says it."""
JITTER = 1.5
"""Who is refused together comes again within the time told and this many times it."""
HELD_S, MOST_HELD = 1.0, 200
"""A refusal is held for a moment, so that a program that asks again at once has to wait; beyond so
many the connections would cost more than the answers."""
MOST_KNOWN = 10_000
"""Credentials whose owner is remembered."""


class _Person(NamedTuple):
    """The owner of a credential."""

    name: str
    exempt: bool = False
    """One of the platform's own processes."""


_STRANGERS = _Person("")


class Callers:
    """Everybody who has called lately, and what of theirs is under way."""

    def __init__(self, allowance: Allowance | None = None) -> None:
        """Begin with nobody."""
        self.allowance = allowance or Allowance()
        self.submissions = 0
        """Under way."""
        self.refused = 0
        """Calls that were refused, ever."""
        self._rates = MovingWindowRateLimiter(MemoryStorage())
        self._known: dict[bytes, _Person] = {}
        self._open = Counter[str]()
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()
        self._held = 0

    def learn(self, credential: bytes, name: str, *, exempt: bool) -> None:
        """Note whose a credential is; the platform's own processes may ask what they like."""
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[credential] = _Person(name, exempt)

    def enter(self, credential: bytes, *, submits: bool) -> str:
        """Count a call as under way until `leave`; return whose it is, "" where nothing bounds it.

        Raises:
            TooMany: its caller asks too much.
            Unavailable: everybody together submits too much.
        """
        person = self._known.get(credential, _STRANGERS)
        name = "" if person.exempt else person.name
        if not person.exempt:
            self._check(name, submits=submits)
        self._open[name] += 1
        self.submissions += submits
        return name

    def turn(self, name: str) -> AbstractAsyncContextManager[object]:
        """Return what one enters when fewer than AT_ONCE of a person's calls are worked on."""
        return self._turns.setdefault(name, asyncio.Semaphore(AT_ONCE)) if name else nullcontext()

    def leave(self, name: str, *, submits: bool) -> None:
        """Note that a call is answered."""
        self.submissions -= submits
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]

    def _check(self, name: str, *, submits: bool) -> None:
        allowed = self.allowance
        # Of strangers as many at once as are identified at once (`identification`).
        if name and allowed.open_at_once and self._open[name] >= allowed.open_at_once:
            raise TooMany(
                f"{allowed.open_at_once} of your calls and streams are open at once.",
                hint="Close panels and pages that nobody looks at.",
                retry_after=_about(OPEN_S),
            )
        if submits and 0 < allowed.submissions_at_once <= self.submissions:
            raise Unavailable(
                f"{self.submissions} submissions wait to be stored.",
                hint="Try again in a few seconds.",
                code="busy",
                retry_after=_about(BUSY_S),
            )
        if allowed.calls_per_s:
            often = allowed.calls_per_s * (1 if name else STRANGERS)
            rate = RateLimitItemPerSecond(often * WINDOW_S, WINDOW_S)
            if not self._rates.hit(rate, name):
                free_at = self._rates.get_window_stats(rate, name).reset_time
                raise TooMany(
                    f"You ask more than {allowed.calls_per_s} times a second.",
                    hint="Wait a moment; many jobs are one call as an array (--array).",
                    retry_after=_about(max(1.0, free_at - time.time())),
                )

    async def hold(self) -> None:
        """Let a refused caller wait a moment for the answer."""
        self.refused += 1
        if self._held >= MOST_HELD:
            return
        self._held += 1
        try:
            await asyncio.sleep(HELD_S)
        finally:
            self._held -= 1


class RequestLimits:
    """Refuse what is too much, before anything is read."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        prefix: str,
        free: Iterable[str],
        refuse: Callable[[RunaiError], ASGIApp],
    ) -> None:
        """Wrap an application under `prefix`; `refuse` makes the answer.

        What costs next to nothing is `free`: these paths below the prefix, and no others.
        """
        self._app = app
        self._free = frozenset(prefix.rstrip("/") + path for path in free)
        self._submits = f"{prefix}api/v1/workloads"
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as the application does, if its caller does not ask too much."""
        if scope["type"] != "http" or scope["path"] in self._free:
            await self._app(scope, receive, send)
            return
        callers: Callers = scope["app"].state.platform.callers
        submits = scope["method"] == "POST" and scope["path"] == self._submits
        try:
            name = callers.enter(credential_of(Headers(scope=scope)), submits=submits)
        except Unavailable as refused:
            await callers.hold()
            await self._refuse(refused)(scope, receive, send)
            return
        waits = b"changed_from=" in scope["query_string"]  # until something happens, and no work
        try:
            async with AsyncExitStack() as worked_on:
                await worked_on.enter_async_context(callers.turn("" if waits else name))

                async def answer(message: Message) -> None:
                    await worked_on.aclose()  # what streams from here on is no work
                    await send(message)

                await self._app(scope, receive, answer)
        finally:
            callers.leave(name, submits=submits)


def credential_of(headers: Headers) -> bytes:
    """Return a digest of what a caller shows; nobody's is the same for all."""
    shown = headers.get("authorization") or headers.get("cookie", "")
    return hashlib.blake2b(shown.encode(errors="replace"), digest_size=16).digest()


def _about(seconds: float) -> float:
    return seconds * random.uniform(1.0, JITTER)  # noqa: S311  nobody's secret
