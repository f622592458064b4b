"""How much one person may ask at once, so that nobody's flood is everybody's wait.

Plain ASGI, before anything is parsed: who asks too much costs next to nothing. Callers are told
apart by what they show (token or cookie), and by name as soon as the API has found out whose that
is. Each has a part of the event loop's time: whose calls take more wait for their turn at the door,
beside which others go in. Refusals are held for a moment: a program that asks again at once has to
wait, too. Knows nothing of what is asked. Made by `app`, fed by `platform`.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from runai.hub_service.allowance import Allowance
from runai.hub_service.api.metering import asking, metered
from runai.hub_service.api.places import Places
from runai.hub_service.api.rush import Rush
from runai.hub_service.api.shares import Share, Shares, held
from runai.hub_service.errors import RunaiError, TooMany, Unavailable

WHOLE = 100
BURST_S = 5.0
"""Whoever was quiet may ask for as much at once as they may in this time."""
HELD_S = 1.0
MOST_HELD = 200
"""Refusals held at once by one caller; beyond, the connection costs more than the answer."""
MOST_KNOWN = 10_000
LONGEST_WAIT_S = 10.0
"""At the door: who would wait longer is told to come again then."""
WORKED_ON = 4
"""Submissions that are read, stored or answered; others wait for that, or for a decision."""
OF_ONE = 2
"""Of one person."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Guest:
    """One caller: a bucket of calls that fills with time."""

    left: float
    at: float
    open: int = 0
    held: int = 0
    free: bool = False
    """One of the platform's own processes."""
    share: Share | None = None
    """Of the event loop's time; None: as much as it likes."""


@dataclass
class Guests:
    """Everybody who has called lately."""

    allowance: Allowance = field(default_factory=Allowance)
    clock: Callable[[], float] = time.monotonic
    submissions: int = 0
    """Under way."""
    refused: int = 0
    """Calls that were refused, ever."""
    rush: Rush = field(default_factory=Rush)
    """Of submissions."""
    places: Places = field(default_factory=lambda: Places(WORKED_ON, OF_ONE))
    """Of submissions: all who are answered after one cycle would else be drawn at once."""
    _shares: Shares | None = None
    _names: dict[bytes, str] = field(default_factory=dict)
    _guests: dict[str | bytes, _Guest] = field(default_factory=dict)

    def learn(self, credential: bytes, name: str, *, free: bool) -> None:
        """Note whose a credential is; the platform's own processes may ask what they like."""
        if len(self._names) >= MOST_KNOWN:
            self._names.clear()
        self._names[credential] = name
        self._guest(name).free = free

    def enter(self, credential: bytes, *, submits: bool, key: bytes | None = None) -> _Guest:
        """Let a call in; by its `key` a submission that comes again is known.

        Raises:
            TooMany: its caller asks too much.
            Unavailable: everybody together does.
        """
        guest = self._guest(self._names.get(credential, credential))
        if guest.free:
            return self._entered(guest, submits=submits)
        rate, most = self.allowance.calls_per_s, self.allowance.open_at_once
        now = self.clock()
        if rate:
            guest.left = min(BURST_S * rate, guest.left + (now - guest.at) * rate)
            guest.at = now
            if guest.left < 1:
                if guest.share is not None:
                    guest.share.flooded()
                raise TooMany(
                    f"You ask more than {rate} times a second.",
                    hint="Wait a moment; many jobs are one call as an array (--array).",
                    retry_after=1.0,
                )
        if most and guest.open >= most:
            raise TooMany(
                f"{most} of your calls and streams are open at once.",
                hint="Close panels and pages that nobody looks at.",
                retry_after=5.0,
            )
        if guest.share is not None and (wait := guest.share.wait_s()) > LONGEST_WAIT_S:
            raise TooMany(
                "Your calls take so much of the service's time that others would wait for them.",
                hint="Wait a moment; many jobs are one call as an array (--array).",
                retry_after=wait,
            )
        places = self.allowance.submissions_at_once
        if submits and places and not self.rush.admits(key, self.submissions, places, now):
            raise Unavailable(
                f"{self.submissions} submissions wait to be stored.",
                hint="Try again in a few seconds.",
                code="busy",
                retry_after=self.rush.wait(key, now),
            )
        guest.left -= 1
        return self._entered(guest, submits=submits)

    def _entered(self, guest: _Guest, *, submits: bool) -> _Guest:
        guest.open += 1
        self.submissions += submits
        return guest

    def leave(self, guest: _Guest, *, submits: bool) -> None:
        """Note that a call is answered."""
        guest.open -= 1
        self.submissions -= submits
        if submits:
            self.rush.done(self.clock())

    async def hold(self, credential: bytes) -> None:
        """Let a refused caller wait a moment for the answer."""
        self.refused += 1
        guest = self._guest(self._names.get(credential, credential))
        if guest.held >= MOST_HELD:
            return
        guest.held += 1
        try:
            await asyncio.sleep(HELD_S)
        finally:
            guest.held -= 1

    def _guest(self, key: str | bytes) -> _Guest:
        guest = self._guests.get(key)
        if guest is None:
            if len(self._guests) >= MOST_KNOWN:
                self._guests = {k: g for k, g in self._guests.items() if g.open or g.free}
            rate, percent = self.allowance.calls_per_s, self.allowance.time_percent
            if self._shares is None and 0 < percent < WHOLE:
                self._shares = Shares(percent / WHOLE, self.clock)
            share = self._shares.new() if self._shares is not None else None
            guest = _Guest(BURST_S * rate, self.clock(), share=share)
            self._guests[key] = guest
        return guest


class FairUse:
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
        guests: Guests = scope["app"].state.platform.guests
        headers = Headers(scope=scope)
        credential = credential_of(headers)
        submits = scope["method"] == "POST" and scope["path"] == self._submits
        try:
            key = _key_of(headers, credential) if submits else None
            guest = guests.enter(credential, submits=submits, key=key)
        except Unavailable as refused:
            await guests.hold(credential)
            await self._refuse(refused)(scope, receive, send)
            return
        share = None if guest.free else guest.share
        try:
            async with AsyncExitStack() as inside:
                work = _Work(share)
                if share is not None:
                    inside.callback(work.end, await share.enter())
                    held.set(share.is_held(guests.clock()))
                if submits and not guest.free:
                    await inside.enter_async_context(guests.places.taken(guest))
                asking.set(work)
                await metered(self._answered(scope, receive, send), work)
        finally:
            guests.leave(guest, submits=submits)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Work:
    """What a call has taken of its caller's share so far."""

    def __init__(self, share: Share | None) -> None:
        self._share = share
        self._spent = 0.0

    def spend(self, seconds: float) -> None:
        self._spent += seconds
        if self._share is not None:
            self._share.spend(seconds)

    async def turn(self) -> None:
        if self._share is not None:
            await self._share.turn()

    def end(self, aside: float) -> None:
        if self._share is not None:
            self._share.leave(aside, self._spent)


def credential_of(headers: Headers) -> bytes:
    """Return a digest of what a caller shows; nobody's is the same for all."""
    shown = headers.get("authorization") or headers.get("cookie", "")
    return hashlib.blake2b(shown.encode(errors="replace"), digest_size=16).digest()


def _key_of(headers: Headers, credential: bytes) -> bytes | None:
    shown = headers.get("idempotency-key", "")
    if not shown:
        return None
    return hashlib.blake2b(shown.encode(errors="replace"), key=credential, digest_size=16).digest()
