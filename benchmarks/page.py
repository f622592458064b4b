"""Load time of the page "GPUs" with 500 workloads, 200 GPUs and 30 days of history.

Serves the page from a filled ledger, opens it in headless Chromium over plain HTTP, and prints the
time to the first paint, the time until it is usable (all rows and the chart), the bytes transferred
until then, and the time until a suspension shows. Goals (medians): 0.5 s, 1.5 s, 500 kB, 2 s.

    python benchmarks/page.py [--visits 7] [--remark TEXT] [--output FILE]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from machine import measured
from playwright.async_api import Browser, async_playwright
from starlette.requests import Request

from runai.hub_service.api.app import create_app
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.services.platform import Platform
from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.decision_worker import DecisionWorker
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.ledger import Ledger
from runai.hub_service.ledger.opening import ledger_url
from runai.hub_service.ledger.store import LedgerStore
from runai.hub_service.ledger.totals import Scope
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.server.listener import Server, listen

NODES, GPUS_OF_A_NODE, WORKLOADS, DAYS = 25, 8, 500, 30
PROJECTS, USERS = 20, 60
PREFIX = "/services/runai/"


class AdminAuthenticator:
    """Authenticator that accepts every request as an admin's."""

    async def actor(self, _request: Request) -> Actor:
        """Return the admin."""
        return Actor("admin", admin=True)

    async def person(self, name: str) -> Actor:
        """Return a user of any name."""
        return Actor(name)


def devices() -> dict[str, list[Device]]:
    """Return the devices of each node."""
    return {
        f"node-{n:02}": [
            Device(i, f"SIM-{n}-{i}", "Simulated GPU", 80_000, simulated=True)
            for i in range(GPUS_OF_A_NODE)
        ]
        for n in range(NODES)
    }


def workloads() -> Iterator[WorkloadSpec]:
    """Yield 500 workloads of half and whole GPUs, more than fit in the cluster."""
    for n in range(WORKLOADS):
        yield WorkloadSpec(
            f"project-{n % PROJECTS:02}", f"exp-{n:03}", f"user-{n % USERS:02}", "job", ("train",),
            gpus=MilliGpu(500 if n % 3 else 1000),
        )  # fmt: skip


def scopes() -> list[Scope]:
    """Return the scopes of all series of the cluster, `all` first."""
    found = [Scope("all"), Scope("watched")]
    found += [Scope("project", project=f"project-{n:02}") for n in range(PROJECTS)]
    found += [Scope("user", user=f"user-{n:02}") for n in range(USERS)]
    found += [Scope("node", node=node) for node in devices()]
    found += [Scope("device", device=d.uuid) for each in devices().values() for d in each]
    return found + [
        Scope("workload", project=w.project, user=w.user, workload=w.id) for w in workloads()
    ]


def write_history(database: Path, end: int) -> int:
    """Write 30 days, the cluster by minutes, the rest by hours; return the row count."""
    LedgerStore(database).close()
    engine = sa.create_engine(ledger_url(database))
    start, rows = end - DAYS * 86400, 0
    with engine.begin() as connection:
        for number, scope in enumerate(scopes(), 1):
            values = {"id": number, "opened": start, **scope._asdict()}
            names = ", ".join(f'"{name}"' for name in values)
            marks = ", ".join(f":{name}" for name in values)
            connection.execute(sa.text(f"INSERT INTO series ({names}) VALUES ({marks})"), values)
            gpus, step = (180, 60) if scope.kind in {"all", "watched"} else (0.5, 3600)
            for level in (60, 3600)[step == 3600 :]:
                written = connection.execute(
                    sa.text(
                        "INSERT INTO samples (series_id, level, at, held_s, measured_s,"
                        f" allocated_s, used_s) WITH RECURSIVE instants(t) AS (SELECT {level}"
                        f" UNION ALL SELECT t + {level} FROM instants WHERE t < {DAYS * 86400})"
                        f" SELECT {number}, {level}, {start} + t, {level}, {level},"
                        f" {gpus * level}, {gpus * level * 0.6} FROM instants"
                    )
                )
                rows += written.rowcount
    engine.dispose()
    return rows


async def place(platform: Platform) -> int:
    """Submit the workloads and run scheduling cycles; return the number with GPUs."""
    for n in range(PROJECTS):
        await platform.cluster.put_project(ProjectSpec(f"project-{n:02}", quota=MilliGpu(10_000)))
    await platform.cluster.submit(list(workloads()))
    for _ in range(3):
        await platform.controller.cycle()
    return sum(record.allocated > 0 for record in await platform.cluster.workloads())


PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
USABLE = """() => document.querySelectorAll('#workloads tr').length >= 500
  && document.querySelector('.uplot canvas') && document.querySelector('.tools:not([hidden])')"""


# Rows below the visible part have no layout, and so no `innerText`, until they are scrolled to.
SUSPENDED = """name => {
  const row = document.getElementById(`w:${name}`);
  row.scrollIntoView();
  return row.innerText.includes('suspended');
}"""


async def visit(
    browser: Browser, url: str, change: Callable[[], Awaitable[str]]
) -> dict[str, float]:
    """Open the page with an empty browser cache, and wait until a change shows."""
    context = await browser.new_context(viewport={"width": 1360, "height": 900})
    page = await context.new_page()
    session = await context.new_cdp_session(page)
    await session.send("Network.enable")
    received: list[int] = []
    session.on("Network.dataReceived", lambda event: received.append(event["encodedDataLength"]))
    began = time.perf_counter()
    await page.goto(f"{url}?range=30d", wait_until="commit")
    await page.wait_for_function(USABLE)
    usable = time.perf_counter() - began
    paint, kilobytes = await page.evaluate(PAINT), sum(received) / 1000
    began = time.perf_counter()
    await page.wait_for_function(SUSPENDED, arg=await change())
    seen = time.perf_counter() - began
    await context.close()
    return {
        "first_paint_s": paint / 1000, "usable_s": usable, "kB": kilobytes, "change_seen_s": seen,
    }  # fmt: skip


async def measure(visits: int) -> dict[str, Any]:
    """Fill the ledger, serve the page and visit it."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        rows = write_history(Path(folder) / "ledger.sqlite", round(time.time()) // 3600 * 3600)
        filled = time.perf_counter() - began
        cluster = simulated_cluster(devices(), clock=time.time)
        ledger = Ledger(Path(folder) / "ledger.sqlite")
        worker = DecisionWorker()
        platform = Platform(
            cluster=cluster, controller=Controller(cluster, worker), decision_worker=worker,
            ledger=ledger,
            idle=IdleWatch(cluster, ledger), authenticator=AdminAuthenticator(), prefix=PREFIX,
            version="benchmark", workdir_exists=lambda _: True,
        )  # fmt: skip
        placed = await place(platform)
        listening = await listen("127.0.0.1", 0)
        server = Server(create_app(platform))
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}{PREFIX}"
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
            )
            waiting = iter(reversed([record.id for record in await cluster.workloads()]))

            async def change() -> str:
                workload = next(waiting)
                await cluster.suspend(workload, by="the benchmark")
                platform.controller.changes.announce()
                return workload

            found = [await visit(browser, url, change) for _ in range(visits)]
            await browser.close()
        platform.shutdown.set()
        server.stop()
        await serving
        ledger.close()
        await worker.close()
    medians = {name: round(statistics.median(f[name] for f in found), 3) for name in found[0]}
    return {
        "workloads": {"all": WORKLOADS, "with GPUs": placed},
        "history": {"rows": rows, "filled_in_s": round(filled, 1)},
        "median": medians,
        "visits": [{name: round(value, 3) for name, value in f.items()} for f in found],
    }


def main() -> None:
    """Print the figures, and save them if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=7)
    parser.add_argument("--remark", default="", help="what else the machine did")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    environment = measured()
    figures = {**environment, "remark": options.remark, **asyncio.run(measure(options.visits))}
    print(json.dumps(figures, indent=1))
    if options.output:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
