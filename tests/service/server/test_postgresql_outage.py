"""The service's PostgreSQL is killed and restarted while users submit jobs and read usage.

The database stores only the history, so no submission is refused. A request for the past is
answered with a time to retry, `health/ready` names the missing part, and no event is lost. The
same holds if the database is away when the service starts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import psycopg
import pytest

from postgres import PostgresServer, postgres_server
from runai.hub_service.cli.doctor.checks import check_ready
from runai.hub_service.client.connection import Connection
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import TOKEN, Service
from waiting import eventually

pytestmark = [pytest.mark.postgresql, pytest.mark.timeout(600)]

USER_COUNT = 3


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server(durable=True) as restarted:
        yield restarted


@dataclass
class UserReplies:
    """The answers that users received."""

    acknowledged: list[str] = field(default_factory=list)
    submit_statuses: set[int] = field(default_factory=set)
    usage_replies: list[httpx.Response] = field(default_factory=list)


class UserThreads:
    """Users that submit jobs and read usage twice a second over plain HTTP, without retries."""

    def __init__(self, url: str) -> None:
        self.replies = UserReplies()
        self._enough = threading.Event()
        self._url = url
        self._threads = [threading.Thread(target=self._run) for _ in range(USER_COUNT)]

    def __enter__(self) -> UserReplies:
        for thread in self._threads:
            thread.start()
        return self.replies

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        job = {"owner": "ana", "gpus": 1, "command": ["sleep", "600"], "grace_seconds": 1}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=self._url, headers=headers, timeout=60) as http:
            while not self._enough.is_set():
                reply = http.post("api/v1/workloads", json=job)
                self.replies.submit_statuses.add(reply.status_code)
                if reply.status_code == 201:
                    self.replies.acknowledged += [w["id"] for w in reply.json()["workloads"]]
                query = {"project": "vision", "since": "2020-01-01T00:00:00Z"}
                self.replies.usage_replies.append(http.get("api/v1/usage", params=query))
                self._enough.wait(0.5)  # each round submits a job, to be ended afterwards


def test_service_accepts_submissions_without_database_and_stores_history_later(
    service: Service, server: PostgresServer
):
    """The database is away when the service starts, appears, and is killed under load."""
    server.kill()
    service.environment["RUNAI_LEDGER"] = server.address
    service.start()
    request = SubmitRequest(owner="ana", gpus=1, command=["sleep", "600"], grace_seconds=1)
    (submitted,) = service.client.submit(request).workloads
    eventually(lambda: service.client.workload(submitted.id).state == "running", within=60)
    without_history = {"status": "ready", "without": "history"}
    assert readiness(service) == (200, without_history)
    refused = usage_of_vision(service)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert refused.json()["code"] == "history_away"

    server.start()
    eventually(lambda: readiness(service) == (200, {"status": "ready"}), within=60)
    assert usage_of_vision(service).status_code == 200
    # Events and usage from before the database appeared are stored.
    eventually(lambda: queued_in_ledger(server) == [submitted.id], within=60)
    eventually(lambda: allocated_in_ledger(server, "vision") > 0, within=60)

    with UserThreads(service.client.url) as replies:
        eventually(lambda: len(replies.acknowledged) >= 5, within=60)
        replies_before = len(replies.usage_replies)
        server.kill()
        acknowledged_before = len(replies.acknowledged)
        eventually(
            lambda: any(reply.status_code == 503 for reply in replies.usage_replies), within=60
        )
        eventually(lambda: len(replies.acknowledged) >= acknowledged_before + 5, within=60)
        eventually(lambda: readiness(service) == (200, without_history), within=60)
        verdicts = {f.subject: f.verdict for f in check_ready(Connection(service.client.url, ""))}
        assert verdicts == {"service": "ok", "history": "failure"}

        server.start()
        eventually(lambda: replies.usage_replies[-1].status_code == 200, within=60)
        eventually(lambda: readiness(service) == (200, {"status": "ready"}), within=60)
        eventually(lambda: len(replies.acknowledged) >= acknowledged_before + 10, within=60)

    assert replies.submit_statuses == {201}
    assert len(set(replies.acknowledged)) == len(replies.acknowledged)
    expected_ids = {submitted.id, *replies.acknowledged}
    assert {w.id for w in service.client.workloads()} == expected_ids
    assert {reply.status_code for reply in replies.usage_replies} == {200, 503}
    assert all(reply.status_code == 200 for reply in replies.usage_replies[:replies_before])
    for refused in (reply for reply in replies.usage_replies if reply.status_code == 503):
        assert refused.headers["Retry-After"] == "2"
        problem = refused.json()
        assert problem["code"] == "history_away"
        assert problem["detail"].startswith("The history cannot be read now (OperationalError)")
    # Events during its absence are written after its return, and only once.
    eventually(lambda: queued_in_ledger(server) == sorted(expected_ids), within=60)


def usage_of_vision(service: Service) -> httpx.Response:
    query = {"project": "vision", "since": "2020-01-01T00:00:00Z"}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.get(f"{service.client.url}api/v1/usage", params=query, headers=headers, timeout=60)


def readiness(service: Service) -> tuple[int, dict[str, str]]:
    reply = httpx.get(f"{service.client.url}health/ready", timeout=60)
    return reply.status_code, reply.json()


def queued_in_ledger(server: PostgresServer) -> list[str]:
    with psycopg.connect(host=os.fspath(server.folder), user="ledger", dbname="postgres") as opened:
        rows = opened.execute("SELECT DISTINCT workload FROM events").fetchall()
    return sorted(row[0] for row in rows)


def allocated_in_ledger(server: PostgresServer, project: str) -> float:
    query = (
        "SELECT coalesce(max(allocated_s), 0) FROM series WHERE kind = 'project' AND project = %s"
    )
    with psycopg.connect(host=os.fspath(server.folder), user="ledger", dbname="postgres") as opened:
        (allocated_s,) = opened.execute(query, [project]).fetchone() or (0.0,)
    return float(allocated_s)
