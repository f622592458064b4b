"""Rate and concurrency limits per user (ASGI middleware).

They apply before anything is parsed, so a refusal costs next to nothing. Two credentials (tokens,
cookies) of one user count together, once `caller_identification` has identified their owner.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from random import SystemRandom
from typing import NamedTuple
from weakref import WeakValueDictionary

from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from limits import RateLimitItemPerSecond
from runai.hub_service.wire.errors import RunaiError, TooMany, Unavailable


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits that the operator sets; 0: none."""

    calls_per_s: int = 0
    """Of one user, on average."""
    open_at_once: int = 0
    """Calls and streams of one user that are under way."""
    submissions_at_once: int = 0
    """Of all users together: more would wait longer than their clients do."""
    unfinished_jobs: int = 0
    """Of one user; an array that exceeds it is refused whole."""


WINDOW_S = 5
"""Length of the moving window. After a pause a user may send all its calls at once."""
UNKNOWN_RATE_FACTOR = 10
"""All unknown credentials together have this many times one user's rate."""
AT_ONCE = 2
"""Calls of one user in progress; further ones queue."""
BUSY_S, OPEN_S = 2.0, 5.0
"""`Retry-After` of refusals without a window to compute it from."""
JITTER = 1.5
"""`Retry-After` is spread between the computed time and this many times it."""
REFUSAL_DELAY_S, MAX_DELAYED_REFUSALS = 1.0, 200
"""Delay of a refusal in seconds, and the maximum of delayed refusals.

A client that retries at once has to wait; each delayed refusal keeps a connection open.
"""
MOST_KNOWN = 10_000
"""Maximum of credentials with a known owner."""


class _CredentialOwner(NamedTuple):
    """Owner of a credential."""

    name: str
    exempt: bool = False
    """True for the platform's own processes."""


_UNKNOWN_OWNER = _CredentialOwner("")


class CallerLimits:
    """Recent callers, and their calls under way."""

    def __init__(self, allowance: Allowance | None = None) -> None:
        """Start without callers."""
        self.allowance = allowance or Allowance()
        self.submissions = 0
        """Submissions under way."""
        self.refused = 0
        """Number of refused calls since the start."""
        self._rates = MovingWindowRateLimiter(MemoryStorage())
        self._owners: dict[bytes, _CredentialOwner] = {}
        self._open_calls = Counter[str]()
        self._semaphores = WeakValueDictionary[str, asyncio.Semaphore]()
        self._delayed_refusals = 0

    def store(self, credential: bytes, name: str, *, exempt: bool) -> None:
        """Store the owner of a credential; the platform's own processes are exempt from limits."""
        if len(self._owners) >= MOST_KNOWN:
            self._owners.clear()
        self._owners[credential] = _CredentialOwner(name, exempt)

    def enter(self, credential: bytes, *, submits: bool) -> str:
        """Count a call as under way until `leave`; return its user, "" for an exempt caller.

        Raises:
            TooMany: the caller sends too many calls.
            Unavailable: too many submissions of all callers are under way.
        """
        owner = self._owners.get(credential, _UNKNOWN_OWNER)
        name = "" if owner.exempt else owner.name
        if not owner.exempt:
            self._check_limits(name, submits=submits)
        self._open_calls[name] += 1
        self.submissions += submits
        return name

    def turn(self, name: str) -> AbstractAsyncContextManager[object]:
        """Return the context for a call of a user, which admits AT_ONCE calls."""
        if not name:
            return nullcontext()
        return self._semaphores.setdefault(name, asyncio.Semaphore(AT_ONCE))

    def leave(self, name: str, *, submits: bool) -> None:
        """Count a call as finished."""
        self.submissions -= submits
        self._open_calls[name] -= 1
        if not self._open_calls[name]:
            del self._open_calls[name]

    def _check_limits(self, name: str, *, submits: bool) -> None:
        """Raise if another call of this user ("": unknown callers) exceeds a limit."""
        allowed = self.allowance
        # Unknown credentials are bounded by the identification (`MAX_AT_ONCE`).
        if name and allowed.open_at_once and self._open_calls[name] >= allowed.open_at_once:
            raise TooMany(
                f"{allowed.open_at_once} of your calls and streams are open at once.",
                hint="Close panels and pages that nobody looks at.",
                retry_after=_with_jitter(OPEN_S),
            )
        if submits and 0 < allowed.submissions_at_once <= self.submissions:
            raise Unavailable(
                f"{self.submissions} submissions wait to be stored.",
                hint="Try again in a few seconds.",
                code="busy",
                retry_after=_with_jitter(BUSY_S),
            )
        if allowed.calls_per_s:
            calls_per_s = allowed.calls_per_s * (1 if name else UNKNOWN_RATE_FACTOR)
            rate = RateLimitItemPerSecond(calls_per_s * WINDOW_S, WINDOW_S)
            if not self._rates.hit(rate, name):
                free_at = self._rates.get_window_stats(rate, name).reset_time
                raise TooMany(
                    f"You ask more than {allowed.calls_per_s} times a second.",
                    hint="Wait a moment; many jobs are one call as an array (--array).",
                    retry_after=_with_jitter(max(1.0, free_at - time.time())),
                )

    async def delay_refusal(self) -> None:
        """Delay the response to a refused caller."""
        self.refused += 1
        if self._delayed_refusals >= MAX_DELAYED_REFUSALS:
            return
        self._delayed_refusals += 1
        try:
            await asyncio.sleep(REFUSAL_DELAY_S)
        finally:
            self._delayed_refusals -= 1


class RequestLimits:
    """ASGI middleware that refuses calls beyond the limits before anything is read."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        prefix: str,
        free: Iterable[str],
        refuse: Callable[[RunaiError], ASGIApp],
    ) -> None:
        """Wrap an application under `prefix`; `refuse` builds the response to a refused call.

        The paths in `free`, below the prefix, cost next to nothing and have no limit.
        """
        self._app = app
        self._free = frozenset(prefix.rstrip("/") + path for path in free)
        self._submits = f"{prefix}api/v1/workloads"
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request within the limits on to the application; refuse any other."""
        if scope["type"] != "http" or scope["path"] in self._free:
            await self._app(scope, receive, send)
            return
        caller_limits: CallerLimits = scope["app"].state.platform.caller_limits
        submits = scope["method"] == "POST" and scope["path"] == self._submits
        try:
            name = caller_limits.enter(credential_of(Headers(scope=scope)), submits=submits)
        except Unavailable as refused:
            await caller_limits.delay_refusal()
            await self._refuse(refused)(scope, receive, send)
            return
        waits = b"changed_from=" in scope["query_string"]  # long polling does no work
        try:
            async with AsyncExitStack() as turn:
                await turn.enter_async_context(caller_limits.turn("" if waits else name))

                async def answer(message: Message) -> None:
                    await turn.aclose()  # a stream does no work after its headers
                    await send(message)

                await self._app(scope, receive, answer)
        finally:
            caller_limits.leave(name, submits=submits)


def credential_of(headers: Headers) -> bytes:
    """Return a digest of a caller's token or cookie. All callers without one share a digest."""
    credential = headers.get("authorization") or headers.get("cookie", "")
    return hashlib.blake2b(credential.encode(errors="replace"), digest_size=16).digest()


def _with_jitter(seconds: float) -> float:
    """Return the seconds, lengthened at random, so that clients do not return together."""
    return seconds * SystemRandom().uniform(1.0, JITTER)
