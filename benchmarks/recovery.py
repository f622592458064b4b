"""Recovery time of a running platform after kill -9 of the service, and then of the hub.

`python benchmarks/recovery.py` starts a platform of five simulated GPUs, a job on each, and writes
`benchmarks/results/faults.json`. Measured from the kill until `health/ready` answers 200; this
includes the time in which the hub notices and restarts its service, or an operator starts the hub.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from machine import ROOT, measured

sys.path.insert(0, str(ROOT / "tests"))

from hub_platform import HubPlatform, runai_up
from runai.hub_service.wire.workload_request import SubmitRequest

RESULTS = ROOT / "benchmarks/results/faults.json"
KILLS = {"service": 10, "hub": 3}
PATIENCE_S = 120.0


def ready_after(platform: HubPlatform, kill: Callable[[], object]) -> float:
    """Kill a process, and return the seconds until the platform is ready."""
    began = time.perf_counter()
    kill()
    while time.perf_counter() - began < PATIENCE_S:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{platform.url}/services/runai/health/ready", timeout=5).is_success:
                return time.perf_counter() - began
        time.sleep(0.05)
    raise TimeoutError


def main() -> None:
    """Measure, print and save the figures."""
    about = measured()
    with tempfile.TemporaryDirectory(prefix="runai-recovery-") as place:
        platform = runai_up(Path(place))
        platform.start()
        try:
            client = platform.client("bob")
            for _ in range(5):
                client.submit(SubmitRequest(gpus=1, command=["sleep", "900"], grace_seconds=1))
            took = {"service": [], "hub": []}
            for _ in range(KILLS["service"]):
                victim = platform.service_process()
                took["service"].append(ready_after(platform, victim.kill))
            for _ in range(KILLS["hub"]):

                def crash() -> None:
                    platform.kill()
                    platform.start()

                took["hub"].append(ready_after(platform, crash))
            states = {workload.state for workload in client.workloads()}
        finally:
            platform.stop()
    result = {
        "what": "seconds from kill -9 to health/ready, five jobs running",
        **about,
        "jobs_afterwards": sorted(states),
        **{
            who: {
                "kills": len(seconds),
                "mean_s": round(statistics.fmean(seconds), 2),
                "worst_s": round(max(seconds), 2),
            }
            for who, seconds in took.items()
        },
    }
    print(json.dumps(result, indent=2))
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    saved["recovery"] = result
    RESULTS.write_text(json.dumps(saved, indent=2) + "\n")


if __name__ == "__main__":
    main()
