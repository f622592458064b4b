"""Whether the service answers at all; what has hung is killed, and JupyterHub starts it again.

JupyterHub looks after processes: one whose loop stands still is a process like any other. Asked is
`health/live`. Who never answered may still start, or wait for a service that has its data open;
and time in which the machine or the hub stood still is nobody's silence. Run by `hub`.
"""

import asyncio
import logging
import time
from asyncio import ensure_future
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from subprocess import Popen
from typing import Any, NoReturn, Protocol

import psutil
from tornado.httpclient import AsyncHTTPClient

EVERY_S = 10.0
LOOK_EVERY_S = 1.0
MOST_AT_ONCE_S = 2 * LOOK_EVERY_S
"""Of the time between two looks: what is more we have not seen, asleep with the machine."""


@dataclass
class Silence:
    """For how long a process has answered nothing, beyond `limit` seconds of which it has hung."""

    limit: float
    has_answered: bool = False
    lasts: float = 0.0

    def heard(self) -> None:
        """Note an answer."""
        self.has_answered, self.lasts = True, 0.0

    def passed(self, seconds: float) -> bool:
        """Note time in which an answer was waited for, and tell whether the process has hung."""
        self.lasts += min(seconds, MOST_AT_ONCE_S)
        return self.has_answered and self.lasts >= self.limit


class Watched(Protocol):
    """What is known of a service of JupyterHub that it starts itself."""

    name: str
    url: str
    proc: Popen[bytes] | None

    @property
    def prefix(self) -> str:
        """Return its path."""


async def look_after(
    service: Watched,
    limit: float,
    log: logging.Logger,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> NoReturn:
    """Kill the service's process whenever it has answered nothing for `limit` seconds; for ever."""
    watched: Popen[bytes] | None = None
    silence, asked, rests_until = Silence(limit), None, 0.0
    while True:
        before = clock()
        await sleep(LOOK_EVERY_S)
        now, process = clock(), service.proc
        if process is not watched:
            watched, silence, asked, rests_until = process, Silence(limit), None, now
        if process is None or process.poll() is not None or now < rests_until:
            continue
        if asked is None:
            asked = ensure_future(_ask(service, process, known=silence.has_answered))
        elif asked.done() and asked.result():
            if not silence.has_answered:
                log.info("Service %s answers, as process %d.", service.name, process.pid)
            silence.heard()
            asked, rests_until = None, now + EVERY_S
        elif silence.passed(now - before):
            log.error(
                "Service %s has answered nothing for %.0f s: it is killed, to be started again.",
                service.name,
                silence.lasts,
            )
            process.kill()
        elif asked.done():
            asked = None


async def _ask(service: Watched, process: Popen[bytes], *, known: bool) -> bool:
    """Wait for an answer, whichever it is, however long it takes; False: nobody is there."""
    with suppress(Exception):  # whatever the other end does to a connection
        url = f"{service.url}{service.prefix}health/live"
        client = AsyncHTTPClient(force_instance=True)
        reply = await client.fetch(url, raise_error=False, connect_timeout=0, request_timeout=0)
        client.close()
        return known or _listens(process.pid, reply.effective_url)
    return False


def _listens(pid: int, url: str) -> bool:
    """Tell whether it was this process that answered: the one before it may still have its port."""
    port = int(url.split("/")[2].rpartition(":")[2])
    found: Any = psutil.Process(pid).net_connections(kind="tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)
