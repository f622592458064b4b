"""A job that writes a gigabyte of output as fast as it can.

Its output on the disk stays bounded however much it writes. Meanwhile its neighbour makes
progress, and the service answers, reads the job's own output and ends it. All processes are real.
"""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

import pytest

from runai.hub_service.clusters.local.processes.attempt import Instructions
from runai.hub_service.wire.program_schemas import LogLine
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import Service
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIN_WRITTEN_BYTES = 1_000_000_000
"""Minimum number of bytes: ten times the bytes kept on disk."""
MIN_ANSWERS = 5
"""Minimum number of answers to a client that reads meanwhile."""

FLOODING_SCRIPT = """
import json, os, sys, time
piece = (b"x" * 99 + b"\\n") * 10_000
began, written = time.monotonic(), 0
while written < int(sys.argv[1]) or not os.path.exists("enough"):
    written += os.write(1, piece)
    took = time.monotonic() - began
    with open("flood.new", "w") as file:
        json.dump({"written": written, "seconds": took}, file)
    os.replace("flood.new", "flood.json")
print("the end", flush=True)
time.sleep(600)
"""
COUNTING_SCRIPT = """
import itertools, os, time
for n in itertools.count():
    with open("neighbour.new", "w") as file:
        file.write(str(n))
    os.replace("neighbour.new", "neighbour")
    print(n, flush=True)
    time.sleep(0.05)
"""


def output_bytes(logs: Path) -> int:
    """Return the bytes of a job's output on the disk; ignore files deleted meanwhile."""
    total = 0
    for path in logs.rglob("log-*.txt"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


class OutputSizeMonitor(threading.Thread):
    """A thread that measures the output on the disk every 20 ms."""

    def __init__(self, logs: Path) -> None:
        super().__init__()
        self._logs = logs
        self.enough = threading.Event()
        self.max_bytes = 0

    def run(self) -> None:
        while not self.enough.wait(0.02):
            self.max_bytes = max(self.max_bytes, output_bytes(self._logs))


def test_service_bounds_output_of_flooding_job_and_stays_responsive(
    service: Service, tmp_path: Path
):
    service.start()
    work = tmp_path / "work"
    work.mkdir()

    def submit(name: str, *command: str) -> None:
        full_command = ["python3", "-I", "-S", "-c", *command]
        service.client.submit(
            SubmitRequest(
                name=name,
                owner="ana",
                gpus=1,
                command=full_command,
                workdir=str(work),
                grace_seconds=1,
            )
        )

    def neighbour_count() -> int:
        path = work / "neighbour"
        return int(path.read_text()) if path.exists() else 0

    def makes_progress(since: int) -> bool:
        return neighbour_count() > since

    def flood_figures() -> dict[str, float]:
        path = work / "flood.json"
        stats: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        return stats

    submit("neighbour", COUNTING_SCRIPT)
    eventually(lambda: neighbour_count() > 5, within=60)
    monitor = OutputSizeMonitor(tmp_path / "data/jobs/vision/flood")
    monitor.start()
    try:
        submit("flood", FLOODING_SCRIPT, str(MIN_WRITTEN_BYTES))
        answer_count = 0
        while flood_figures().get("written", 0) < MIN_WRITTEN_BYTES or answer_count < MIN_ANSWERS:
            before = neighbour_count()
            # Its last lines while it still writes; a line may be partial if its file was deleted.
            lines = [line.text for line in service.client.logs("vision/flood", tail=5)]
            unexpected_lines = [line for line in lines if line.strip("x") not in {"", "the end"}]
            assert unexpected_lines == []
            assert max(map(len, lines), default=0) <= 99
            assert service.client.workload("vision/flood").state in {
                "queued",
                "starting",
                "running",
            }
            eventually(partial(makes_progress, before), what="the neighbour gets on")
            answer_count += 1
        (work / "enough").touch()
        eventually(lambda: [line.text for line in last_lines(service)] == ["the end"], within=60)
    finally:
        monitor.enough.set()
        monitor.join()

    # Ten files of 10 MB, and a new one that is started before the oldest is deleted.
    instructions = Instructions((), "/", grace_seconds=1)
    max_stored_bytes = (instructions.log_files + 1) * instructions.log_bytes
    assert 0 < monitor.max_bytes <= max_stored_bytes
    service.client.suspend("vision/flood")
    service.until("vision/flood", "suspended")
    neighbour = service.client.workload("vision/neighbour")
    assert (neighbour.state, neighbour.attempts) == ("running", 1)
    figures = flood_figures()
    rate = figures["written"] / figures["seconds"] / 1e6
    print(f"{rate:.0f} MB/s, at most {monitor.max_bytes / 1e6:.0f} MB")


def last_lines(service: Service) -> list[LogLine]:
    return list(service.client.logs("vision/flood", tail=1))
