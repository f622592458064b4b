"""Recovery time of the history after kill -9 of the ledger's PostgreSQL under a running service.

`python benchmarks/history_away.py` adds `postgresql_killed` to `benchmarks/results/faults.json`:
the seconds until the history can be read again, from the kill (with the server's start and
recovery) and from the server's first answer. Jobs are submitted all the while; the number of
refusals is reported (the promise is none).
"""

import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from machine import ROOT, measured

sys.path.insert(0, str(ROOT / "tests"))


from postgres import postgres_server
from service_process import TOKEN, Service

RESULTS = ROOT / "benchmarks/results/faults.json"
KILLS = 10
PATIENCE_S = 120.0
JOB = {"owner": "ana", "gpus": 1, "command": ["sleep", "900"], "grace_seconds": 1}


def free_port() -> int:
    """Return an unused TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    """Measure, print and save the figures."""
    about = measured()
    took: list[float] = []
    after: list[float] = []
    submissions: list[int] = []
    with (
        postgres_server(durable=True) as server,
        tempfile.TemporaryDirectory(prefix="runai-history-") as place,
        httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http,
    ):
        service = Service(Path(place), free_port())
        service.environment["RUNAI_LEDGER"] = server.address
        service.start()
        api = f"{service.client.url}api/v1/"

        def past() -> int:
            query = {"project": "vision", "since": "2020-01-01T00:00:00Z"}
            return http.get(f"{api}usage", params=query).status_code

        try:
            for _ in range(KILLS):
                began = time.perf_counter()
                server.kill()
                submissions.append(http.post(f"{api}workloads", json=JOB).status_code)
                assert past() == httpx.codes.SERVICE_UNAVAILABLE
                server.start()
                answers = time.perf_counter()
                while past() != httpx.codes.OK:
                    if time.perf_counter() - answers > PATIENCE_S:
                        raise TimeoutError
                    time.sleep(0.02)
                took.append(time.perf_counter() - began)
                after.append(time.perf_counter() - answers)
        finally:
            service.clean()
    result = {
        "what": "the ledger's PostgreSQL killed beneath a service that is asked and submitted to",
        **about,
        "kills": len(took),
        "submissions_refused": sum(status != httpx.codes.CREATED for status in submissions),
        "mean_s": round(statistics.mean(took), 2),
        "longest_s": round(max(took), 2),
        "after_its_first_answer_mean_s": round(statistics.mean(after), 3),
        "after_its_first_answer_longest_s": round(max(after), 3),
    }
    print(json.dumps(result, indent=2))
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    saved["postgresql_killed"] = result
    RESULTS.write_text(json.dumps(saved, indent=2) + "\n")


if __name__ == "__main__":
    main()
