"""Measure the agent's CPU time: 8 GPUs, 64 processes, once a second. No GPU needed.

    python benchmarks/agent.py [--seconds N]     # prints, and writes benchmarks/results/agent.json

The agent is the real one, as the service starts it: it polls the tests' fake NVML library,
attributes 64 real (sleeping) processes, and reports over HTTP to a server that answers with 64
allocations. Its CPU time is read from the kernel, in windows of five seconds. Other load on the
machine raises it (caches), so the lowest window is reported next to the mean and the load. Baseline
of the same run: nvitop's snapshots of the same processes, once a second.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
from machine import measured

from runai.hub_service.wire.reports import AgentAllocation, AgentReply, AgentReport
from runai.hub_service.wire.schemas import DeviceShareView

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "agent.json"
GPUS = 8
PROCESSES = 64
WARM_UP_S = 15.0
"""Warm-up: start, imports, first reading of every process."""
WINDOW_S = 5.0
TARGET = 0.01
"""Share of a core."""
UUIDS = [f"GPU-{n}aaaaaaa-0000-0000-0000-000000000000" for n in range(GPUS)]

BASELINE = """
import time
from nvitop import Device, GpuProcess
devices = Device.all()
while True:
    began = time.monotonic()
    for device in devices:
        device.memory_used()
        GpuProcess.take_snapshots(device.processes().values(), failsafe=True)
    time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
"""


def spread(pids: Sequence[int], *, everywhere: bool) -> list[tuple[int, int]]:
    """Return the processes on each GPU: one GPU per process, or all with `everywhere`."""
    if everywhere:
        return [(gpu, pid) for gpu in range(GPUS) for pid in pids]
    return [(n % GPUS, pid) for n, pid in enumerate(pids)]


def write_state(path: Path, uses: Sequence[tuple[int, int]], samples: int) -> None:
    """Write the fake library's state: every process busy, with samples of the last second."""
    now_us = time.time_ns() // 1000
    lines = [f"gpu {uuid} 143771 600 70000 80 NVIDIA H200" for uuid in UUIDS]
    lines += [f"proc {gpu} {pid} 1000 C" for gpu, pid in uses]
    lines += [
        f"sample {gpu} {pid} {now_us - 1_000_000 * n // samples} 10"
        for n in range(samples)
        for gpu, pid in uses
    ]
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n")
    new.rename(path)


class Service(ThreadingHTTPServer):
    """HTTP server that accepts reports and answers with the allocations."""

    daemon_threads = True

    def __init__(self, reply: bytes) -> None:
        """Listen on a free port."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply = reply
        self.last: bytes = b""
        self.reports = 0


class Handler(BaseHTTPRequestHandler):
    """Request handler for one agent."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_POST(self) -> None:
        """Accept a report."""
        self.server.last = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.reports += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.reply)))
        self.end_headers()
        self.wfile.write(self.server.reply)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def sleepers() -> Iterator[list[psutil.Process]]:
    """Run the sleeping processes during the block."""
    started = [subprocess.Popen(["sleep", "100000"]) for _ in range(PROCESSES)]
    try:
        yield [psutil.Process(p.pid) for p in started]
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def allocations(processes: Sequence[psutil.Process], uses: Sequence[tuple[int, int]]) -> bytes:
    """Return the service's allocations: one workload per process."""
    entries = [
        AgentAllocation(
            workload=f"project-{n % 4}/job-{n}",
            worker=f"project-{n % 4}/job-{n}-0",
            project=f"project-{n % 4}",
            user=f"user-{n % 8}",
            shares=[
                DeviceShareView(device=gpu, uuid=UUIDS[gpu], gpus=0.125)
                for gpu, pid in uses
                if pid == process.pid
            ],
            limits_mib={UUIDS[gpu]: 17_000 for gpu, pid in uses if pid == process.pid},
            pid=process.pid,
            created=process.create_time(),
        )
        for n, process in enumerate(processes)
    ]
    return AgentReply(allocations=entries).model_dump_json().encode()


def cost(
    command: Sequence[str], environment: dict[str, str], tick: Callable[[], None], seconds: float
) -> list[float]:
    """Return a program's share of a core by window; call `tick` once a second."""
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as program:

        def spent() -> float:
            # In nanoseconds: the usual times are counted in ticks and miss short runs.
            stats = Path(f"/proc/{program.pid}/task").glob("*/schedstat")
            return sum(int(stat.read_text().split()[0]) for stat in stats) / 1e9

        def run_for(duration: float) -> None:
            end = time.monotonic() + duration
            while (left := end - time.monotonic()) > 0:
                tick()
                time.sleep(min(1.0, left))

        run_for(WARM_UP_S)
        windows = []
        for _ in range(max(1, round(seconds / WINDOW_S))):
            before, began = spent(), time.monotonic()
            run_for(WINDOW_S)
            windows.append((spent() - before) / (time.monotonic() - began))
        program.terminate()
    return windows


def measure(library: Path, seconds: float, *, everywhere: bool) -> dict[str, Any]:
    """Measure the agent and the baseline over the same processes."""
    state = library.parent / "state"
    samples = 1 if everywhere else 6
    with sleepers() as processes:
        uses = spread([p.pid for p in processes], everywhere=everywhere)
        service = Service(allocations(processes, uses))
        threading.Thread(target=service.serve_forever, daemon=True).start()
        write_state(state, uses, samples)
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(library.parent),
            "FAKE_NVML_STATE": str(state),
            "RUNAI_API_URL": f"http://127.0.0.1:{service.server_port}/",
            "RUNAI_AGENT_TOKEN": "token",
            "RUNAI_NODE": "here",
        }

        def tick() -> None:
            write_state(state, uses, samples)

        agent = cost([sys.executable, "-m", "runai.hub_service.agent"], environment, tick, seconds)
        report = AgentReport.model_validate_json(service.last)
        assert len(report.processes) == len(uses), "the agent saw something else"
        assert all(p.workload and p.memory_mib == 1000 for p in report.processes)
        assert any(p.utilization == 0.1 for p in report.processes)
        baseline = cost([sys.executable, "-c", BASELINE], environment, tick, seconds)
        service.shutdown()
        service.server_close()
    return {
        "readings a second": len(uses),
        "agent, share of a core, least window": round(min(agent), 5),
        "agent, share of a core, mean": round(mean(agent), 5),
        "nvitop, share of a core, least window": round(min(baseline), 5),
        "nvitop, share of a core, mean": round(mean(baseline), 5),
        "nvitop / agent, by means": round(mean(baseline) / mean(agent), 1),
        "target": TARGET,
        "met by the mean": mean(agent) <= TARGET,
        "met by the least": min(agent) <= TARGET,
        "bytes a report": len(service.last),
    }


def main() -> int:
    """Measure, print and save the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    seconds = parser.parse_args().seconds
    environment = measured()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        source = ROOT / "tests" / "agent" / "fake_nvml.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        found = {
            "8 GPUs, 64 processes, each on one": measure(library, seconds, everywhere=False),
            "8 GPUs, 64 processes, each on all": measure(library, seconds, everywhere=True),
        }
    figures = {
        **environment,
        "nvitop": version("nvitop"),
        "seconds": seconds,
        "baseline": "nvitop: memory, processes and GpuProcess.take_snapshots of each device",
        "results": found,
    }
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    for name, result in found.items():
        print(name)
        for key, value in result.items():
            print(f"  {key:40} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
