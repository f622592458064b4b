"""Time and memory to read a log of a million lines.

`python benchmarks/long_log.py` starts a service, and writes to `benchmarks/results/long_log.json`
the time to the last 500 lines (the page's request) and to all lines, by the client and by the
command line, the slowest answer to another request meanwhile, and the growth of the service's
memory. The same for ten megabytes without a newline, and for a million empty lines.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from machine import ROOT, measured

sys.path.insert(0, str(ROOT / "tests"))

from ports import free_ports
from service_process import TOKEN, Service

RESULTS = ROOT / "benchmarks/results/long_log.json"
PROGRAMS = {
    "a million lines": "print(*range(1_000_000), sep='\\n')",
    "ten megabytes without an end": "print('x' * 10_000_000, end='')",
    "a million empty lines": "print('\\n' * 1_000_000, end='')",
}


def seconds(deed: Callable[[], object]) -> float:
    """Call a function and return its seconds."""
    began = time.perf_counter()
    deed()
    return round(time.perf_counter() - began, 3)


def slowest_answer(service: Service, reading: threading.Thread) -> float:
    """Repeat another request while the log is read; return the longest time in seconds."""
    slowest = 0.0
    while reading.is_alive():
        slowest = max(slowest, seconds(lambda: service.client.workload("vision/other")))
    return slowest


def figures_of(service: Service, name: str) -> dict[str, float]:
    """Read a job's log in each way; return the figures."""
    assert service.process is not None
    process = psutil.Process(service.process.pid)
    before = process.memory_info().rss
    workload = f"vision/{name}"
    tail = seconds(lambda: list(service.client.logs(workload, tail=500)))
    reading = threading.Thread(target=lambda: sum(1 for _ in service.client.logs(workload)))
    began = time.perf_counter()
    reading.start()
    slowest = slowest_answer(service, reading)
    whole = round(time.perf_counter() - began, 3)
    environment = {
        **os.environ,
        "RUNAI_API_URL": f"{service.environment['JUPYTERHUB_SERVICE_URL']}/services/runai/",
        "JUPYTERHUB_API_TOKEN": TOKEN,
    }
    command = [sys.executable, "-P", "-m", "runai.hub_service.cli", "logs", name, "-p", "vision"]
    printed = seconds(
        lambda: subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    )
    return {
        "last_500_lines_s": tail,
        "all_s": whole,
        "all_by_the_command_line_s": printed,
        "slowest_answer_to_another_s": slowest,
        "memory_grew_mib": round((process.memory_info().rss - before) / 2**20, 1),
    }


def main() -> None:
    """Measure, print and save the figures."""
    figures = {**measured(), "logs": {}}
    with tempfile.TemporaryDirectory(prefix="runai-long-log-") as place:
        service = Service(Path(place), free_ports(1)[0])
        service.start()
        try:
            service.submit("other", "import time; time.sleep(900)")
            for number, (what, program) in enumerate(PROGRAMS.items()):
                name = f"log-{number}"
                service.submit(name, program)
                service.until(f"vision/{name}", "succeeded")
                figures["logs"][what] = figures_of(service, name)
                print(what, figures["logs"][what], flush=True)
                # Saved after each, so that an aborted run keeps its figures.
                RESULTS.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        finally:
            service.clean()


if __name__ == "__main__":
    main()
