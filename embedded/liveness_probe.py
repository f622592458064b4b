"""Liveness probe of the service: kills a hung process, which JupyterHub then restarts.

JupyterHub checks the process alone, not its event loop; the probe requests `health/live`. A process
is killed only after a first answer: before it may still start, or wait for the previous service to
close its database. Time in which the machine or the hub was suspended does not count.
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

PROBE_INTERVAL_S = 10.0
POLL_INTERVAL_S = 1.0
MAX_STEP_S = 2 * POLL_INTERVAL_S
"""Most seconds counted per round: a longer one means that machine or hub was suspended."""


@dataclass
class Silence:
    """One process's time without an answer; after `limit` seconds it counts as hung."""

    limit: float
    has_answered: bool = False
    silent_s: float = 0.0

    def record_answer(self) -> None:
        """Reset the time after an answer."""
        self.has_answered, self.silent_s = True, 0.0

    def hangs_after(self, seconds: float) -> bool:
        """Add time without an answer; return True if the process has hung."""
        self.silent_s += min(seconds, MAX_STEP_S)
        return self.has_answered and self.silent_s >= self.limit


class MonitoredService(Protocol):
    """A service that JupyterHub starts itself."""

    name: str
    url: str
    proc: Popen[bytes] | None

    @property
    def prefix(self) -> str:
        """Return its URL path."""


async def probe_liveness(
    service: MonitoredService,
    limit: float,
    log: logging.Logger,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> NoReturn:
    """Kill the service's process each time it does not answer for `limit` seconds; run forever."""
    known_process: Popen[bytes] | None = None
    silence, probe, next_probe_at = Silence(limit), None, 0.0
    while True:
        began = clock()
        await sleep(POLL_INTERVAL_S)
        now, process = clock(), service.proc
        if process is not known_process:
            known_process, silence, probe, next_probe_at = process, Silence(limit), None, now
        if process is None or process.poll() is not None or now < next_probe_at:
            continue
        if probe is None:
            probe = ensure_future(_probe(service, process, has_answered=silence.has_answered))
        elif probe.done() and probe.result():
            if not silence.has_answered:
                log.info("Service %s responds (process %d).", service.name, process.pid)
            silence.record_answer()
            probe, next_probe_at = None, now + PROBE_INTERVAL_S
        elif silence.hangs_after(now - began):
            log.error(
                "Service %s has not responded for %.0f s: killing it; JupyterHub restarts it.",
                service.name,
                silence.silent_s,
            )
            process.kill()
        elif probe.done():
            probe = None


async def _probe(service: MonitoredService, process: Popen[bytes], *, has_answered: bool) -> bool:
    """Wait without limit for any answer of the process; return False on a connection error."""
    with suppress(Exception):  # any connection or protocol error
        url = f"{service.url}{service.prefix}health/live"
        client = AsyncHTTPClient(force_instance=True)
        reply = await client.fetch(url, raise_error=False, connect_timeout=0, request_timeout=0)
        client.close()
        return has_answered or _listens(process.pid, reply.effective_url)
    return False


def _listens(pid: int, url: str) -> bool:
    """Return True if this process has the port: the previous one may still have it."""
    port = int(url.split("/")[2].rpartition(":")[2])
    connections: Any = psutil.Process(pid).net_connections(kind="tcp")
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
