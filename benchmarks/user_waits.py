"""Measure the waiting times of the embedded platform's users, and its cost when idle.

    python benchmarks/user_waits.py     # prints, and writes benchmarks/results/user_waits.json

Each figure has a baseline of the same run: JupyterHub alone for the start, the bare process for a
submission, the paused job's own grace period for a reclaim, JupyterHub's own CPU time for the idle
cost. Needs an idle machine; `load` records how idle it was.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import psutil
from machine import measured
from platforms import as_user, free_port, minted_token, seconds_until, started, stop

from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest

RESULTS = Path(__file__).parent / "results" / "user_waits.json"
ROUNDS = 7
IDLE_SECONDS = 60
JOB = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); time.sleep(600)"


def plain_hub(folder: Path) -> tuple[float, float]:
    """Start JupyterHub alone, with the same proxy; return its start time and idle cost."""
    port, api = free_port(), free_port()
    config = folder / "plain.py"
    config.write_text(
        f"c.JupyterHub.bind_url = 'http://127.0.0.1:{port}'\n"
        f"c.JupyterHub.hub_bind_url = 'http://127.0.0.1:{api}'\n"
        "c.JupyterHub.proxy_class = 'runai-caddy'\n"
        f"c.CaddyProxy.folder = '{folder}/proxy'\n"
        "c.JupyterHub.authenticator_class = 'dummy'\n"
    )
    command = [sys.executable, "-m", "jupyterhub", "-f", str(config)]
    hub, seconds = started(command, f"http://127.0.0.1:{port}/hub/login", folder)
    idle = idle_cost([psutil.Process(hub.pid)])
    stop(hub)
    return seconds, idle


def idle_cost(processes: list[psutil.Process]) -> float:
    """Return the percentage of a core that processes use without requests."""
    time.sleep(5)

    def used() -> float:
        return sum(p.cpu_times().user + p.cpu_times().system for p in processes)

    before = used()
    time.sleep(IDLE_SECONDS)
    return 100 * (used() - before) / IDLE_SECONDS


def submission(client: Client, name: str) -> float:
    """Return the seconds from the submission until the job runs."""
    began = time.perf_counter()
    request = SubmitRequest(name=name, gpus=1, command=[sys.executable, "-c", JOB])
    client.submit(request)
    seconds_until(lambda: client.workload(f"{client.default_project}/{name}").state == "running")
    return time.perf_counter() - began


def seconds_of(command: list[str], environment: Mapping[str, str] | None = None) -> float:
    """Return the median seconds of a program's run."""

    def run() -> float:
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        return time.perf_counter() - began

    return statistics.median(run() for _ in range(ROUNDS))


def main() -> None:
    """Run everything once and save the figures."""
    environment = measured()
    with tempfile.TemporaryDirectory(prefix="runai-bench-") as name:
        folder = Path(name)
        plain, plain_idle = plain_hub(folder)
        port = free_port()
        root = f"http://127.0.0.1:{port}"
        up = [sys.executable, "-m", "runai.embedded", "--simulate", "5", "--port", str(port)]
        up += ["--data-dir", str(folder / "data")]
        health = f"{root}/services/runai/health"
        hub, first = started(up, health, folder)
        stop(hub)
        hub, second = started(up, health, folder)
        try:
            ours = [psutil.Process(hub.pid), *psutil.Process(hub.pid).children(recursive=True)]
            idle = idle_cost(ours)
            bob = as_user(root, folder / "data", "bob", "vision")
            patty = as_user(root, folder / "data", "patty", "nlp")
            admin = as_user(root, folder / "data", "admin", "vision")
            runai = str(Path(sys.executable).with_name("runai"))
            token = minted_token(root, folder / "data", "bob")
            session = {"RUNAI_API_URL": bob.url, "JUPYTERHUB_API_TOKEN": token}
            status = seconds_of([runai, "status"], session)
            submits = [submission(bob, f"bob-{i}") for i in range(5)]
            admin.put_project("vision", ProjectPut(quota=Decimal(0)))
            admin.put_project("nlp", ProjectPut(quota=Decimal(5)))
            reclaims = [submission(patty, f"patty-{i}") for i in range(5)]
        finally:
            for client in (bob, patty):
                for workload in client.workloads(user=client.whoami().name):
                    client.delete(workload.id)
            seconds_until(lambda: not bob.workloads())
            stop(hub)
    bare = seconds_of([sys.executable, "-c", "pass"])
    figures = {
        "first_start_s": (first, plain),
        "second_start_s": (second, plain),
        "submit_to_running_s": (statistics.median(submits), bare),
        "reclaim_to_running_s": (statistics.median(reclaims), bare),
        "runai_status_beyond_python_s": (status - bare, bare),
        "idle_percent_of_a_core": (idle, plain_idle),
    }
    result = {
        **environment,
        "figures": {
            what: {
                "value": round(value, 3),
                "baseline": round(baseline, 3),
                "ratio": round(value / baseline, 2) if baseline else None,
            }
            for what, (value, baseline) in figures.items()
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
