"""Equal response times for all login attempts, and slower ones for attacked accounts.

An attempt is answered a fixed time after its start, so the response time reveals nothing about the
account. Up to 32 attempts run at once. An attacked account responds more slowly, and is never
locked.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from runai.hub_service.wire.printable import printable

T = TypeVar("T")

AT_ONCE = 32
SLOT_TIMEOUT_S = 10.0
ANSWER_AFTER_S = 1.0
SLOW_ANSWER_AFTER_S = 5.0
MAX_WRONG = 50
"""Wrong passwords of an account within an hour, after which its attempts take longer."""
WRONG_WITHIN_S = 3600.0
SLOTS = 4096
"""Names share slots by a keyed hash: invented names cannot use up memory."""
MAX_NAME_LENGTH = 64


class NoFreeSlot(Exception):
    """Error: all slots for attempts stay occupied."""


class LoginAttempts:
    """Login attempts in progress, and the wrong passwords of the last hour."""

    def __init__(
        self,
        log: logging.Logger | logging.LoggerAdapter[Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        slot_timeout_s: float = SLOT_TIMEOUT_S,
    ) -> None:
        self._log = log
        self._clock = clock
        self._sleep = sleep
        self._slot_timeout_s = slot_timeout_s
        self._running = asyncio.Semaphore(AT_ONCE)
        self._key = secrets.token_bytes(16)
        self._wrong: dict[int, deque[float]] = {}

    async def answer(self, name: str, check: Callable[[], Awaitable[T | None]]) -> T | None:
        """Return the result of `check` (None: wrong name or password) after the fixed time.

        Raises:
            NoFreeSlot: no slot became free within `slot_timeout_s`.
        """
        try:
            async with asyncio.timeout(self._slot_timeout_s):
                await self._running.acquire()
        except TimeoutError:
            raise NoFreeSlot from None
        try:
            began = self._clock()
            answer_after_s = SLOW_ANSWER_AFTER_S if self._is_slowed(name) else ANSWER_AFTER_S
            result = await check()
            if result is None:
                self._count_wrong(name)
            await self._sleep(max(0.0, began + answer_after_s - self._clock()))
            return result
        finally:
            self._running.release()

    def slowed(self, names: Iterable[str]) -> list[str]:
        """Return the names with slower responses now."""
        return [name for name in names if self._is_slowed(name)]

    def _is_slowed(self, name: str) -> bool:
        wrong = self._wrong.get(self._slot(name))
        if wrong is None or len(wrong) < MAX_WRONG:
            return False
        return self._clock() - wrong[0] < WRONG_WITHIN_S

    def _count_wrong(self, name: str) -> None:
        """Count a wrong password; log when the name's answers become slow."""
        was_slowed = self._is_slowed(name)
        wrong = self._wrong.setdefault(self._slot(name), deque(maxlen=MAX_WRONG))
        wrong.append(self._clock())
        if self._is_slowed(name) and not was_slowed:
            self._log.warning(
                "%d wrong passwords for %s within an hour: each try for it takes %.0f s now.",
                MAX_WRONG,
                printable(name, MAX_NAME_LENGTH),
                SLOW_ANSWER_AFTER_S,
            )

    def _slot(self, name: str) -> int:
        """Return the slot of a name, which a few other names share."""
        digest = hashlib.blake2b(name.encode(errors="replace"), key=self._key, digest_size=8)
        return int.from_bytes(digest.digest()) % SLOTS
