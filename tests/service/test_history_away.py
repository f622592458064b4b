"""The service's PostgreSQL is killed and started again; people submit and ask meanwhile.

The database is of the history alone, so nobody's submission is refused; who asks about the past is
told when to come again, `health/ready` says what is missing, and nothing that happened is lost. So
it is where it is away when the service starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from postgres_restarts import RestartedServer, restarted_server
from runai.hub_service.cli.examination import check_ready
from runai.hub_service.connection import Connection
from service_process import TOKEN, Service
from waiting import eventually

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(600)]


@pytest.fixture
def server() -> Iterator[RestartedServer]:
    with restarted_server() as found:
        yield found


def test_a_database_that_is_away_costs_nobody_a_submission_and_the_past_is_whole_again(
    service: Service, server: RestartedServer
):
    """It is away when the service starts, comes, and is killed while people go on."""
    server.kill()
    service.environment["RUNAI_LEDGER"] = server.address
    service.start()
    first = submitted(service)
    eventually(lambda: service.client.workload(first).state == "running", within=60)
    without = {"status": "ready", "without": "history"}
    assert readiness(service) == (200, without)
    refused = usage_of_vision(service)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert refused.json()["code"] == "history_away"

    server.start()
    eventually(lambda: readiness(service) == (200, {"status": "ready"}), within=60)
    assert usage_of_vision(service).status_code == 200
    # What happened before it was there is written down, and usage is from then on.
    eventually(lambda: queued_ever(server) == [first], within=60)
    eventually(lambda: allocated_ever(server, "vision") > 0, within=60)

    ids = [first, submitted(service)]
    server.kill()
    told = set[int]()

    def is_refused() -> bool:
        told.add(usage_of_vision(service).status_code)
        return 503 in told

    eventually(is_refused, within=60)
    assert told <= {200, 503}, "at no moment anything else"
    ids += [submitted(service) for _ in range(3)]
    eventually(lambda: readiness(service) == (200, without), within=60)
    refused = usage_of_vision(service)
    problem = refused.json()
    assert (refused.headers["Retry-After"], problem["code"]) == ("2", "history_away")
    assert problem["detail"].startswith("The history cannot be read now (OperationalError)")
    verdicts = {f.subject: f.verdict for f in check_ready(Connection(service.client.url, ""))}
    assert verdicts == {"service": "ok", "history": "failure"}

    server.start()
    eventually(lambda: usage_of_vision(service).status_code == 200, within=60)
    eventually(lambda: readiness(service) == (200, {"status": "ready"}), within=60)
    ids.append(submitted(service))
    assert {w.id for w in service.client.workloads()} == set(ids)
    # What happened while it was away was written when it was back, and only once.
    eventually(lambda: queued_ever(server) == sorted(ids), within=60)


def submitted(service: Service) -> str:
    """Submit a job once, without a client that waits and tries again; return its id."""
    job = {"owner": "ana", "gpus": 1, "command": ["sleep", "600"], "grace_seconds": 1}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{service.client.url}api/v1/workloads"
    reply = httpx.post(url, json=job, headers=headers, timeout=60)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["workloads"][0]["id"])


def usage_of_vision(service: Service) -> httpx.Response:
    # So long ago that memory cannot answer.
    past = {"project": "vision", "since": "2020-01-01T00:00:00Z"}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.get(f"{service.client.url}api/v1/usage", params=past, headers=headers, timeout=60)


def readiness(service: Service) -> tuple[int, dict[str, str]]:
    reply = httpx.get(f"{service.client.url}health/ready", timeout=60)
    return reply.status_code, reply.json()


def queued_ever(server: RestartedServer) -> list[str]:
    with psycopg.connect(host=os.fspath(server.folder), user="ledger", dbname="postgres") as opened:
        rows = opened.execute("SELECT DISTINCT workload FROM events").fetchall()
    return sorted(row[0] for row in rows)


def allocated_ever(server: RestartedServer, project: str) -> float:
    asked = (
        "SELECT coalesce(max(allocated_s), 0) FROM totals JOIN series ON id = series_id"
        " WHERE kind = 'project' AND project = %s"
    )
    with psycopg.connect(host=os.fspath(server.folder), user="ledger", dbname="postgres") as opened:
        (found,) = opened.execute(asked, [project]).fetchone() or (0.0,)
    return float(found)
