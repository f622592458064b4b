"""Panels that listen: a thousand event streams in a process of their own.

    python benchmarks/crowd/streams.py < {"url": …, "users": […], "each": 5}

Prints a line when all are open, and what they have received when its standard input ends. Reads
bytes and counts events; what is in them is the panels' own business.
"""

import asyncio
import json
import resource
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

OPEN_AT_ONCE = 50


@dataclass
class Heard:
    """What all streams have received."""

    events: int = 0
    received: int = 0
    broken: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    """Seconds between two events of one stream."""
    first: list[float] = field(default_factory=list)
    """Seconds from asking to the first event."""


async def listen(url: str, user: str, heard: Heard, opened: asyncio.Semaphore) -> None:
    """Open one stream and read it until cancelled."""
    parts = urlsplit(url)
    async with opened:
        asked = time.perf_counter()
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**20)
        writer.write(
            f"GET {parts.path}api/v1/events HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer token-of-{user}\r\n\r\n".encode()
        )
        status = await reader.readline()
        if b" 200 " not in status:
            heard.broken.append(f"{user}: {status.decode().strip()}")
            return
        last, tail = 0.0, b""
        last, tail = await _read(reader, heard, last, tail)
        heard.first.append(time.perf_counter() - asked)
    try:
        while True:
            last, tail = await _read(reader, heard, last, tail)
    except EOFError:
        heard.broken.append(f"{user}: ended")
    finally:
        writer.close()


async def _read(
    reader: asyncio.StreamReader, heard: Heard, last: float, tail: bytes
) -> tuple[float, bytes]:
    """Read until an event has begun."""
    while True:
        piece = await reader.read(2**16)
        if not piece:
            raise EOFError
        heard.received += len(piece)
        text = tail + piece
        found, tail = text.count(b"event: overview"), text[-14:]
        if found:
            now = time.perf_counter()
            heard.events += found
            if last:
                heard.gaps.append(now - last)
            return now, tail


async def main() -> None:
    """Listen until standard input ends."""
    wanted = json.loads(sys.stdin.readline())
    heard, opened = Heard(), asyncio.Semaphore(OPEN_AT_ONCE)
    tasks = [
        asyncio.create_task(listen(wanted["url"], user, heard, opened))
        for user in wanted["users"]
        for _ in range(wanted["each"])
    ]
    began = time.perf_counter()
    while len(heard.first) + len(heard.broken) < len(tasks):  # noqa: ASYNC110  each may fail
        await asyncio.sleep(0.1)
    print(json.dumps({"opened_in_s": round(time.perf_counter() - began, 1)}), flush=True)
    began, cpu = time.perf_counter(), _cpu()
    heard.events = heard.received = 0
    heard.gaps.clear()
    await asyncio.to_thread(sys.stdin.read)
    took = time.perf_counter() - began
    told = {
        "open": sum(not task.done() for task in tasks),
        "broken": heard.broken[:20],
        "events": heard.events,
        "MB": round(heard.received / 1e6, 1),
        "first": heard.first,
        "gaps": heard.gaps,
        "cpu": (_cpu() - cpu) / took,
        "seconds": took,
    }
    for task in tasks:
        task.cancel()
    print(json.dumps(told), flush=True)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    asyncio.run(main())
