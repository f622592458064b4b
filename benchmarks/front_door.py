"""Measure `runai up` as shipped: start, memory, requests and transfers through its front door.

    python benchmarks/front_door.py --baseline /tmp/oldenv/bin/python   # 3 to 4 minutes

Prints, and writes benchmarks/results/front_door.json: medians of the rounds; memory of hub and
proxy together. The baseline is the platform before Caddy, with a proxy in the hub's process; both
run in turns. `direct` is the same client without a front door. Needs an idle machine and 12 GB.

Make the baseline's environment, its dependencies borrowed from this one:

    .venv/bin/python -m venv /tmp/oldenv
    /tmp/oldenv/bin/pip install --no-deps "git+file://$PWD@a06a8d3"
    for lib in /tmp/oldenv/lib/python3.*; do
        echo "$PWD/.venv/lib/${lib##*/}/site-packages" > "$lib/site-packages/new.pth"; done
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
from aiohttp import web
from machine import measured
from platforms import answers, free_port, seconds_until, started, stop

RESULTS = Path(__file__).parent / "results" / "front_door.json"
PREFIX = "/services/bench"
ROUNDS = 3
SETTLES_S = 2  # closing 500 websockets takes the old hub half a second
AT_ONCE = 16
REQUESTS, WEBSOCKETS = 4800, 500
DOWN_BYTES, UP_BYTES = 1_000_000_000, 500_000_000
MESSAGE_BYTES = 2**30
SMALL, PART = bytes(2), bytes(2**20)
SPAWN = multiprocessing.get_context("spawn")  # upstream and client: a process each
Figures = dict[str, float]


def serve(port: int) -> None:
    """Answer requests, transfers and websockets below PREFIX, until terminated."""
    app = web.Application()
    app.router.add_route("*", f"{PREFIX}/", _transfer)
    app.router.add_get(f"{PREFIX}/ws", _websocket)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None, shutdown_timeout=0)


async def _transfer(request: web.Request) -> web.StreamResponse:
    received = sum([len(part) async for part in request.content.iter_any()])
    size = int(request.query.get("bytes", len(SMALL)))
    response = web.StreamResponse(headers={"Content-Length": str(size), "Received": str(received)})
    await response.prepare(request)
    for sent in range(0, size, len(PART)):
        await response.write(PART[: size - sent])
    return response


async def _websocket(request: web.Request) -> web.WebSocketResponse:
    websocket = web.WebSocketResponse(max_msg_size=0)
    await websocket.prepare(request)
    async for message in websocket:
        await websocket.send_str(str(len(message.data)))
    return websocket


def small_requests(root: str, count: int) -> Figures:
    """Send small requests over AT_ONCE kept connections; return p50, p99 and rate."""
    address = urlsplit(root)
    request = f"GET {PREFIX}/ HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
    waits: list[float] = []

    async def connection() -> None:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        for _ in range(count // AT_ONCE):
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            assert await reader.readexactly(len(SMALL)) == SMALL
            waits.append(1000 * (time.perf_counter() - began))
        writer.close()

    async def all_connections() -> None:
        await asyncio.gather(*(connection() for _ in range(AT_ONCE)))

    began = time.perf_counter()
    asyncio.run(all_connections())
    rate = count / (time.perf_counter() - began)
    cuts = statistics.quantiles(waits, n=100)
    return {"small_p50_ms": cuts[49], "small_p99_ms": cuts[98], "small_per_s": rate}


def transfer(root: str, down: int, up: int) -> float:
    """Return MB/s of one request, given the bytes of its answer and of its body."""
    connection = http.client.HTTPConnection(urlsplit(root).netloc)
    body = (PART[: up - sent] for sent in range(0, up, len(PART)))
    buffer, got = bytearray(len(PART)), 0
    began = time.perf_counter()
    connection.request("POST", f"{PREFIX}/?bytes={down}", body, {"Content-Length": str(up)})
    answer = connection.getresponse()
    while read := answer.readinto(buffer):
        got += read
    assert (got, answer.headers["Received"]) == (down, str(up)), got
    return (down + up) / 1e6 / (time.perf_counter() - began)


def websockets(root: str, count: int, size: int, pids: list[int]) -> float:
    """Send a message over each of `count` websockets; return the MiB of `pids` meanwhile."""

    async def open_all() -> float:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            opened = [await session.ws_connect(f"{root}{PREFIX}/ws") for _ in range(count)]
            for websocket in opened:
                await websocket.send_bytes(bytes(size))
                assert await websocket.receive_str() == str(size)
            return memory(pids)

    return asyncio.run(open_all())


def memory(pids: list[int]) -> float:
    """Return the MiB of processes, shared pages in proportion (PSS)."""
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids) / 2**20


def peak(pids: list[int]) -> float:
    """Return the peak resident MiB of processes since the last reset of each."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(int(text.partition("VmHWM:")[2].split()[0]) for text in texts) / 1024


def through(root: str, pids: list[int], client: ProcessPoolExecutor) -> Figures:
    """Measure one address, and the memory of the processes behind it."""

    def play(work: Callable[..., float], *sizes: object) -> tuple[float, float]:
        time.sleep(SETTLES_S)
        for pid in pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is now what is resident
        before = peak(pids)
        done = client.submit(work, root, *sizes).result()
        return done, max(0.0, peak(pids) - before)  # the kernel's counts are not exact

    time.sleep(SETTLES_S)
    idle = memory(pids)
    small: Figures = client.submit(small_requests, root, REQUESTS).result()
    websockets_mib, _ = play(websockets, WEBSOCKETS, 1, pids)
    down, down_growth = play(transfer, DOWN_BYTES, 0)
    up, up_growth = play(transfer, 0, UP_BYTES)
    figures = {**small, "down_1gb_mb_per_s": down, "up_500mb_mb_per_s": up}
    if pids:  # last: memory that a large message leaves behind would serve transfers
        _, message_growth = play(websockets, 1, MESSAGE_BYTES, pids)
        figures |= {
            "idle_mib": idle,
            "websockets_500_mib": websockets_mib,
            "down_growth_mib": down_growth,
        }
        figures |= {"up_growth_mib": up_growth, "message_1gib_growth_mib": message_growth}
    return figures


def platform(python: str, upstream: str, client: ProcessPoolExecutor) -> Figures:
    """Start a platform in a new data directory, measure it, stop it."""
    with tempfile.TemporaryDirectory(prefix="runai-bench-") as name:
        data, port = Path(name) / "data", free_port()
        data.mkdir(mode=0o700)
        service = f'c.JupyterHub.services.append({{"name": "bench", "url": "{upstream}"}})\n'
        (data / "jupyterhub_config.py").write_text(service)
        root = f"http://127.0.0.1:{port}"
        up = [python, "-m", "runai.embedded", "--simulate", "5", "--port", str(port)]
        hub, seconds = started([*up, "--data-dir", str(data)], f"{root}/hub/login", Path(name))
        try:
            seconds_until(lambda: answers(f"{root}{PREFIX}/"))
            seconds_until(lambda: answers(f"{root}/services/runai/health"))
            proxies = [p for p in psutil.Process(hub.pid).children() if p.name() == "caddy"]
            pids = [hub.pid, *(proxy.pid for proxy in proxies)]
            return {"processes": len(pids), "start_s": seconds, **through(root, pids, client)}
        finally:
            stop(hub)


def main() -> None:
    """Run all rounds and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baseline", required=True, metavar="PYTHON", help="see this file's top")
    old = parser.parse_args().baseline
    subprocess.run([old, "-c", "import runai.embedded.proxy"], check=True)
    on, port = measured(), free_port()
    upstream = f"http://127.0.0.1:{port}"
    rounds: dict[str, list[Figures]] = {"value": [], "baseline": [], "direct": []}
    SPAWN.Process(target=serve, args=(port,), daemon=True).start()
    seconds_until(lambda: answers(f"{upstream}{PREFIX}/"))
    with ProcessPoolExecutor(1, mp_context=SPAWN) as client:
        for number in range(ROUNDS):
            rounds["direct"].append(through(upstream, [], client))
            turns = [("baseline", old), ("value", sys.executable)]
            for which, python in turns if number % 2 == 0 else reversed(turns):
                rounds[which].append(platform(python, upstream, client))
    figures: dict[str, dict[str, float | None]] = {}
    for what in rounds["value"][0]:
        found = {
            which: round(statistics.median(one[what] for one in several), 3)
            for which, several in rounds.items()
            if what in several[0]
        }
        ratio = round(found["value"] / found["baseline"], 2) if found["baseline"] else None
        figures[what] = {**found, "ratio": ratio}
    result = {**on, "baseline_commit": "a06a8d3", "rounds": ROUNDS, "figures": figures}
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
