"""Response times of a loaded service: 200 users, 500 sessions, 20,000 queued jobs.

    nice -n 10 python benchmarks/load.py [--baseline PYTHON] [--only PART] [--keep]

Runs the real service on a local cluster with simulated GPUs, in a separate process, filled with the
hub's token; then, one after another:

    array     while it is filled: the reply to an array of half of the jobs, and its first start
    idle      CPU use without requests
    change    the scheduler's part of a cycle after one submission
    opens     requests of the page and a list, in sequence
    explains  explanations while dry runs have forecasts made
    what_if   a what-if question, and the slowest `health/live` of another user meanwhile
    pages     300 open pages for a minute, with the CPU time of the service
    relays    the same with 200 users' JupyterLab, one relay each, all in the generator
    flood     one user sends 500 requests a second, 200 at once; response times of other users
    loops     three users each submit 200 jobs in sequence
    commands  the same with the command `runai submit`, 40 each, and its start-up alone
    kills     the decision worker is killed again and again; until the next decision

`--baseline` measures another interpreter's service first, on the same machine. Each figure comes
with the generator's own CPU time. `--keep` writes results/load.json.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import aiohttp
import psutil
from crowd.hub import name_of, servers_of
from machine import ROOT, measured

from runai.hub_service.client import Client
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.workload_request import SubmitRequest

RESULTS = ROOT / "benchmarks/results/load.json"
HUB = Path(__file__).with_name("crowd") / "hub.py"
HUB_TOKEN = "token-of-the-hub"
PROJECTS, GPUS = 20, 160  # users of odd projects have three servers: 7.5 of a quota of 8
STARTS_WITHIN_S = 120
AT_ONCE = 16
"""Submissions at once while it is filled."""
PAGES, RELAYS = 300, 200
FLOOD_A_SECOND, FLOOD_AT_ONCE = 500, 200
PROBES = ("whoami", "overview", "projects", "workloads?user=user-001", "submit")
"""Requests of other users during a flood, each once a second."""
SUBMITTERS, SUBMITS, COMMANDS = 3, 200, 40

Measured = dict[str, Any]


def project_of(number: int) -> str:
    """Return a user's project; each project has ten users."""
    return f"project-{number % PROJECTS:02}"


class UserClient:
    """HTTP client that makes and times calls of users."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self.statuses = Counter[int]()

    async def call(self, user: int, path: str, body: object = None) -> tuple[float, Any]:
        """Make one call; return its seconds and its JSON, or None if it was refused."""
        began = time.perf_counter()
        headers = {"Authorization": f"Bearer token-of-{name_of(user)}"}
        async with self._http.request(
            "GET" if body is None else "POST", path, json=body, headers=headers
        ) as reply:
            raw = await reply.read()
        self.statuses[reply.status] += 1
        is_json = reply.ok and reply.content_type == "application/json"
        return time.perf_counter() - began, json.loads(raw) if is_json else None

    async def text(self, user: int, path: str) -> str:
        """Return the text of a reply."""
        headers = {"Authorization": f"Bearer token-of-{name_of(user)}"}
        async with self._http.get(path, headers=headers) as reply:
            return await reply.text()

    async def submit(self, user: int) -> tuple[float, Any]:
        """Submit a job that waits."""
        job_fields = {"project": project_of(user), "gpus": 1, "command": ["sleep", "600"]}
        return await self.call(user, "api/v1/workloads", job_fields)


@asynccontextmanager
async def service(python: str, data: Path, users: int) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Run the service and a stand-in hub during the block; leave no process behind."""
    hub_port, port = _unused_port(), _unused_port()
    lines = ["projects:"]
    for number in range(PROJECTS):
        members = ", ".join(name_of(m) for m in range(number, users, PROJECTS))
        quota = GPUS / PROJECTS
        lines.append(f"  {project_of(number)}: {{quota: {quota}, members: [{members}]}}")
    (data / "projects.yaml").write_text("\n".join(lines))
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))},
        "RUNAI_DATA_DIR": str(data / "data"),
        "RUNAI_HUB_TOKEN": HUB_TOKEN,
        "RUNAI_SIMULATE": str(GPUS),
        "RUNAI_PROJECTS": str(data / "projects.yaml"),
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub_port}/hub/api",
        "JUPYTERHUB_API_TOKEN": "token-of-the-service",
    }
    url = f"http://127.0.0.1:{port}/services/runai/"
    with (data / "service.log").open("wb") as log:
        hub = subprocess.Popen([sys.executable, str(HUB), str(hub_port), str(users)])  # noqa: ASYNC220
        program = [python, "-P", "-m", "runai.hub_service"]
        process = subprocess.Popen(program, env=environment, stdout=log, stderr=log)  # noqa: ASYNC220
    try:
        deadline = time.monotonic() + STARTS_WITHIN_S
        async with aiohttp.ClientSession() as http:
            while not await _is_ready(http, url):
                if time.monotonic() > deadline or process.poll() is not None:
                    raise RuntimeError((data / "service.log").read_text()[-4000:])
                await asyncio.sleep(0.1)
        yield url, psutil.Process(process.pid)
    finally:
        for one in (process, hub):
            one.send_signal(signal.SIGTERM)
            one.wait(60)
        _end_jobs(data)


async def _is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    with suppress(aiohttp.ClientError):
        async with http.get(f"{url}health/ready") as reply:
            return reply.ok
    return False


def _end_jobs(data: Path) -> None:
    """Kill the jobs that have started: by design they outlive the service."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(data) in word for word in words):
                process.kill()


def fill(url: str, users: int, jobs: int) -> Measured:
    """Start each user's two or three sessions; queue an array of half of the jobs, and the rest."""
    here, began, sessions = psutil.Process(), time.perf_counter(), 0
    report = ProcessReport(pid=here.pid, created=here.create_time())
    array: Measured = {}
    with Client(url, HUB_TOKEN, patience_s=120) as hub:
        for number in range(users):
            mine = {"owner": name_of(number), "project": project_of(number)}
            for server in servers_of(number):
                request = SubmitRequest(kind="session", server=server, gpus=0.25, **mine)
                (session,) = hub.submit(request).workloads
                while session.allocated == 0:
                    session = hub.wait(session.id, session.version)
                hub.attach(session.id, report)
                sessions += 1

        def job(number: int, name: str, array: int | None = None) -> SubmitRequest:
            return SubmitRequest(
                name=name,
                owner=name_of(number),
                project=project_of(number),
                gpus=1,
                command=["sleep", "86400"],
                array=array,
            )

        submitted_at = time.perf_counter()
        first = hub.submit(job(0, "array", jobs // 2)).workloads[0]
        array["reply_s"] = round(time.perf_counter() - submitted_at, 3)
        while first.started is None:
            first = hub.wait(first.id, first.version)
        array["first_start_s"] = round(time.perf_counter() - submitted_at, 3)
        queued_jobs = [job(1 + n % (users - 1), f"queued-{n}") for n in range(jobs // 2)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(hub.submit, queued_jobs))
    took = round(time.perf_counter() - began, 1)
    return {"sessions": sessions, "queued": jobs, "took_s": took, "array": array}


async def idle(seconds: float) -> Measured:
    """Ask nothing."""
    await asyncio.sleep(seconds)
    return {}


async def change(client: UserClient) -> Measured:
    """Submit single jobs; return the mean of the scheduler's part of the cycles since."""
    before = await _decided(client)
    for _ in range(20):
        await client.submit(11)
        await asyncio.sleep(0.3)
    after = await _decided(client)
    cycles = after[1] - before[1]
    return {"cycles": cycles, "decide_ms": round(1000 * (after[0] - before[0]) / cycles, 1)}


async def _decided(client: UserClient) -> tuple[float, float]:
    """Return the seconds of all decisions so far, and their number."""
    found = {}
    for line in (await client.text(11, "metrics")).splitlines():
        if line.startswith("runai_cycle_phase_seconds_") and 'phase="decide"' in line:
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0].rpartition("_")[2]] = float(value)
    return found["sum"], found["count"]


async def explains(client: UserClient) -> Measured:
    """Ask why a job waits while another user's dry runs have forecasts made."""
    _, reply = await client.submit(12)
    (workload,) = reply["workloads"]

    async def try_on() -> None:
        job_fields = {"project": project_of(13), "gpus": 1, "command": ["true"]}
        while True:
            await client.call(13, "api/v1/workloads?dry_run=true", job_fields)

    beside = asyncio.create_task(try_on())
    path = f"api/v1/workloads/{workload['id']}/explanation"
    took = [(await client.call(12, path))[0] for _ in range(40)]
    beside.cancel()
    return spread(took)


async def what_if(client: UserClient) -> Measured:
    """Ask what one more job would change; return its seconds, and those of `health/live` beside."""
    question = {"add": [{"project": project_of(14), "gpus": 1, "command": ["true"]}]}
    plan_call = asyncio.create_task(client.call(14, "api/v1/plan", question))
    beside: list[float] = []
    while not plan_call.done():
        beside.append((await client.call(15, "health/live"))[0])
    took, reply = await plan_call
    most = round(max(beside), 3)
    return {"answered": reply is not None, "s": round(took, 2), "live_max_s": most}


async def kills(client: UserClient, service: psutil.Process, times: int) -> Measured:
    """Kill the decision worker, and submit a job at once; return the time until its decision."""
    took: list[float] = []
    stored: list[str] = []
    for _ in range(times):
        for worker in _workers(service):
            worker.kill()
        began, (_, reply) = time.perf_counter(), await client.submit(14)
        if reply is not None:
            (seen,) = reply["workloads"]
            stored.append(seen["id"])
            while seen["state"] == "queued" and seen["reason"] is None:
                _, seen = await client.call(14, f"api/v1/workloads/{seen['id']}")
            took.append(time.perf_counter() - began)
    _, page = await client.call(14, f"api/v1/workloads?user={name_of(14)}&limit=2000")
    listed = Counter(w["id"] for w in page["items"])
    lost = [workload for workload in stored if not listed[workload]]
    return {
        "until_decided": spread(took),
        "lost": len(lost),
        "doubled": sum(many > 1 for many in listed.values()),
    }


def _workers(service: psutil.Process) -> list[psutil.Process]:
    """Return the service's decision worker, and what is forked from it."""
    found = []
    for child in service.children(recursive=True):
        with suppress(psutil.Error):
            if any("decision_process" in word for word in child.cmdline()):
                found.append(child)
    return found


async def opens(client: UserClient) -> Measured:
    """Request the page and a list, in sequence."""
    found: Measured = {}
    for name, path in (("page", ""), ("list", "api/v1/workloads?limit=200")):
        found[name] = spread([(await client.call(n % 40 + 1, path))[0] for n in range(40)])
    return found


async def pages(
    client: UserClient, http: aiohttp.ClientSession, users: int, seconds: float
) -> Measured:
    """Keep pages of different users open; count the pieces that they receive."""
    pieces = 0

    async def watch_page(user: int) -> None:
        nonlocal pieces
        headers = {"Authorization": f"Bearer token-of-{name_of(user)}"}
        async with http.get("live/gpus", headers=headers) as reply:
            async for _ in reply.content.iter_any():
                pieces += 1

    watchers = [asyncio.create_task(watch_page(n % users)) for n in range(PAGES)]
    await asyncio.sleep(seconds)
    whoami_times = spread([(await client.call(n, "api/v1/whoami"))[0] for n in range(40)])
    broken = sum(task.done() for task in watchers)
    for task in watchers:
        task.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)
    return {"open": PAGES, "broken": broken, "pieces": pieces, "whoami_beside": whoami_times}


async def relays(client: UserClient, url: str, seconds: float) -> Measured:
    """Keep one window of 200 JupyterLabs open; count the frames that they receive."""
    from runai.lab.feed import Feed  # noqa: PLC0415 - an older service's environment lacks it

    frames, lost = 0, 0

    def receive(frame: str) -> None:
        nonlocal frames, lost
        frames += 1
        lost += "lost" in json.loads(frame)

    feeds = [
        Feed({"RUNAI_API_URL": url, "JUPYTERHUB_API_TOKEN": f"token-of-{name_of(number)}"})
        for number in range(RELAYS)
    ]
    for feed in feeds:
        feed.add(receive)
    await asyncio.sleep(seconds)
    whoami_times = spread([(await client.call(n, "api/v1/whoami"))[0] for n in range(40)])
    for feed in feeds:
        feed.remove(receive)
    return {"open": RELAYS, "frames": frames, "lost": lost, "whoami_beside": whoami_times}


async def flood(client: UserClient, loud: UserClient, seconds: float) -> Measured:
    """Flood the service as one user; return other users' response times without and with it."""

    async def probe_users() -> dict[str, list[float]]:
        took: dict[str, list[float]] = {name: [] for name in PROBES}

        async def one(name: str, number: int) -> None:
            await asyncio.sleep(number)
            user = 1 + number % 3
            call = client.submit(user) if name == "submit" else client.call(user, f"api/v1/{name}")
            took[name].append((await call)[0])

        await asyncio.gather(*(one(name, n) for name in PROBES for n in range(int(seconds))))
        return took

    async def flooding() -> None:
        at_once, pending = asyncio.Semaphore(FLOOD_AT_ONCE), set[asyncio.Task[None]]()

        async def one(number: int) -> None:
            path = ("overview", "workloads", "whoami")[number % 3]
            with suppress(aiohttp.ClientError, TimeoutError):
                await loud.call(0, f"api/v1/{path}")
            at_once.release()

        began, number = time.perf_counter(), 0
        while True:
            await asyncio.sleep(began + number / FLOOD_A_SECOND - time.perf_counter())
            await at_once.acquire()
            pending.add(task := asyncio.create_task(one(number)))
            task.add_done_callback(pending.discard)
            number += 1

    alone = await probe_users()
    noise = asyncio.create_task(flooding())
    beside = await probe_users()
    noise.cancel()
    return {
        "alone": {name: spread(took) for name, took in alone.items()},
        "beside": {name: spread(took) for name, took in beside.items()},
        "all_beside": spread([one for took in beside.values() for one in took]),
        "flood": dict(loud.statuses),
    }


async def loops(client: UserClient) -> Measured:
    """Submit jobs in sequence as some users; wait a second after each refusal."""
    stored: list[str] = []

    async def one(user: int) -> list[float]:
        took: list[float] = []
        while len(took) < SUBMITS:
            seconds, reply = await client.submit(user)
            if reply is None:
                await asyncio.sleep(1.0)
                continue
            took.append(seconds)
            stored.extend(w["id"] for w in reply["workloads"])
        return took

    took = await asyncio.gather(*(one(user) for user in range(11, 11 + SUBMITTERS)))
    return {
        "submit": spread([seconds for each in took for seconds in each]),
        "stored_twice": len(stored) - len(set(stored)),
    }


async def commands(python: str, url: str) -> Measured:
    """Submit jobs in sequence by the command, as some users."""
    runai = str(Path(python).with_name("runai"))

    async def timed(user: int, *arguments: str) -> float:
        token = f"token-of-{name_of(user)}"
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(runai, *arguments),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "RUNAI_API_URL": url, "JUPYTERHUB_API_TOKEN": token},
        )
        if await process.wait():
            raise RuntimeError(f"runai {' '.join(arguments)} failed")
        return time.perf_counter() - began

    async def one(user: int) -> list[float]:
        submit = ("submit", "-g", "1", "--", "sleep", "600")
        return [await timed(user, *submit) for _ in range(COMMANDS)]

    start_up = [await timed(11, "--version") for _ in range(COMMANDS)]
    took = await asyncio.gather(*(one(user) for user in range(11, 11 + SUBMITTERS)))
    return {
        "start_up": spread(start_up),
        "submit": spread([seconds for each in took for seconds in each]),
    }


def spread(seconds: list[float]) -> dict[str, float]:
    """Return the number of values, their median, 99th percentile and maximum, in milliseconds."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    found = {"p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(seconds)}
    return {"n": len(seconds), **{name: round(1000 * value, 1) for name, value in found.items()}}


async def used(process: psutil.Process, part: Callable[[], Awaitable[Measured]]) -> Measured:
    """Run a part; return its figures with the CPU use of service and generator."""
    began, service_cpu, own = time.perf_counter(), _cpu(process), _own_cpu()
    found = await part()
    took = time.perf_counter() - began
    return {
        **found,
        "service_cores": round((_cpu(process) - service_cpu) / took, 2),
        "generator_cores": round((_own_cpu() - own) / took, 2),
        "service_MiB": process.memory_info().rss >> 20,
        "worker_MiB": sum(worker.memory_info().rss for worker in _workers(process)) >> 20,
    }


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


PARTS = (
    *("idle", "change", "explains", "what_if", "opens", "pages", "relays"),
    *("flood", "loops", "commands", "kills"),
)


async def measure(python: str, options: argparse.Namespace) -> Measured:
    """Start and fill a service with this interpreter, and run all parts."""
    with tempfile.TemporaryDirectory(prefix="runai-load-") as folder:
        async with service(python, Path(folder), options.users) as (url, process):
            found: Measured = {
                "filled": await asyncio.to_thread(fill, url, options.users, options.jobs)
            }
            limits = aiohttp.TCPConnector(limit=0)
            patience = aiohttp.ClientTimeout(total=120)
            async with aiohttp.ClientSession(url, connector=limits, timeout=patience) as http:
                client, loud = UserClient(http), UserClient(http)
                for user in range(options.users):  # fills the service's cache of token owners
                    await client.call(user, "api/v1/whoami")
                parts: dict[str, Callable[[], Awaitable[Measured]]] = {
                    "idle": lambda: idle(options.seconds / 2),
                    "change": lambda: change(client),
                    "explains": lambda: explains(client),
                    "what_if": lambda: what_if(client),
                    "opens": lambda: opens(client),
                    "pages": lambda: pages(client, http, options.users, options.seconds),
                    "relays": lambda: relays(client, url, options.seconds),
                    "flood": lambda: flood(client, loud, options.seconds),
                    "loops": lambda: loops(client),
                    "commands": lambda: commands(python, url),
                    "kills": lambda: kills(client, process, options.kills),
                }
                for name in options.only or PARTS:
                    found[name] = await used(process, parts[name])
                    print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
                found["statuses"] = dict(client.statuses)
    return found


def main() -> None:
    """Measure, print and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each part")
    parser.add_argument("--kills", type=int, default=100, help="of the decision worker")
    parser.add_argument("--baseline", metavar="PYTHON", help="whose service is played first")
    parser.add_argument("--only", action="append", choices=PARTS, help="play only this part")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    result = measured()
    if options.baseline:
        result["baseline"] = asyncio.run(measure(options.baseline, options))
    result["now"] = asyncio.run(measure(sys.executable, options))
    print(json.dumps(result, indent=1))
    if options.keep:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
