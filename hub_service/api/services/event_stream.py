"""Streams with heartbeats, rechecked permissions and an end at shutdown."""

import asyncio
import time
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable
from random import SystemRandom
from typing import TypeVar

from runai.hub_service.wire.errors import RunaiError

T = TypeVar("T")

HEARTBEAT_S = 15.0
"""Seconds between heartbeats; clients take three missed ones for a broken connection."""
CHECK_EVERY_S = 20.0


async def with_heartbeats(
    body: AsyncIterator[bytes],
    heartbeat: bytes,
    check: Callable[[], Awaitable[None]],
    shutdown: asyncio.Event,
) -> AsyncIterator[bytes]:
    """Forward a stream, and add the `heartbeat` after HEARTBEAT_S of silence.

    It ends at the `shutdown` of the service, or when its source or `check`, called every
    CHECK_EVERY_S, raises a RunaiError: the object is gone, or the reader lost its permission.
    """
    source = aiter(body)
    last_sent = time.monotonic()
    # Stagger the first check: a restart reopens all streams together, and each check is a call.
    last_check = time.monotonic() - SystemRandom().uniform(0, CHECK_EVERY_S)
    # No TaskGroup: another task may close a generator than the one that started it.
    shutdown_wait = asyncio.ensure_future(shutdown.wait())
    next_piece = asyncio.ensure_future(_next_or_none(source))
    try:
        while not shutdown_wait.done():
            # Wake in time for the check, so that a revoked reader is cut off within a minute.
            until_check = max(0.0, last_check + CHECK_EVERY_S - time.monotonic())
            until_heartbeat = max(0.0, last_sent + HEARTBEAT_S - time.monotonic())
            timeout = min(until_heartbeat, until_check)
            await asyncio.wait(
                {next_piece, shutdown_wait}, timeout=timeout, return_when=FIRST_COMPLETED
            )
            if time.monotonic() - last_check >= CHECK_EVERY_S:
                await check()
                last_check = time.monotonic()
            if not next_piece.done():
                # Otherwise the wait ended for the check.
                if time.monotonic() - last_sent >= HEARTBEAT_S:
                    yield heartbeat
                    last_sent = time.monotonic()
                continue
            if (piece := next_piece.result()) is None:
                return
            next_piece = asyncio.ensure_future(_next_or_none(source))
            yield piece
            last_sent = time.monotonic()
    except RunaiError:
        return
    finally:
        next_piece.cancel()
        shutdown_wait.cancel()


async def result_before_shutdown(
    shutdown: asyncio.Event, work: Awaitable[T], within_s: float
) -> T | None:
    """Return the result of `work`; None at a timeout or the service's end."""
    work_task = asyncio.ensure_future(work)
    shutdown_wait = asyncio.ensure_future(shutdown.wait())
    try:
        await asyncio.wait(
            {work_task, shutdown_wait}, timeout=within_s, return_when=FIRST_COMPLETED
        )
        return work_task.result() if work_task.done() else None
    finally:
        work_task.cancel()
        shutdown_wait.cancel()


async def _next_or_none(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
