"""Operations: request ids, health checks that reflect the state, restarts under load."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from restarted_under_load import (
    change_quota,
    delete_workload,
    running_clients,
    submit_workload,
    suspend_workload,
)
from service_process import TOKEN
from waiting import eventually, eventually_async

JOB = {"gpus": 1, "command": ["sleep", "600"], "grace_seconds": 1}


@pytest.fixture
async def http(simulated):
    async with simulated.http("ana") as client:
        yield client


@pytest.mark.parametrize(
    ("request_id", "is_accepted"),
    [
        pytest.param("load-7.3", True, id="letters and digits"),
        pytest.param("a" * 64, True, id="maximum length"),
        pytest.param("a" * 65, False, id="too long"),
        pytest.param("a b", False, id="with a space"),
        pytest.param('"}, {"level', False, id="with JSON"),
        pytest.param("", False, id="empty"),
        pytest.param(None, False, id="no header"),
    ],
)
async def test_request_id_of_the_caller_is_used_if_it_is_safe_to_log(request_id, is_accepted, http):
    headers = {} if request_id is None else {"X-Request-ID": request_id}

    reply = await http.get("api/v1/projects", headers=headers)

    reply_id = reply.headers["X-Request-ID"]
    assert reply_id == request_id if is_accepted else re.fullmatch(r"[0-9a-f]{16}", reply_id)


async def test_request_log_line_has_path_and_status_but_no_query(http, caplog):
    caplog.set_level(logging.INFO, "runai.requests")

    await http.post("api/v1/workloads?token=secret", json={}, headers={"X-Request-ID": "mine"})

    (line,) = [r.getMessage() for r in caplog.records if r.name == "runai.requests"]
    assert re.fullmatch(r"POST '/services/runai/api/v1/workloads' 4\d\d in \d+ ms", line)


async def test_long_request_path_is_truncated_in_the_log(http, caplog):
    caplog.set_level(logging.INFO, "runai.requests")

    await http.post("api/v1/" + "x%20" * 10_000)

    (line,) = [r.getMessage() for r in caplog.records if r.name == "runai.requests"]
    # The path is cut to 200 characters, of which the prefix has 23.
    assert re.fullmatch(r"POST '/services/runai/api/v1/[x ]{177}' 404 in \d+ ms", line)


@pytest.mark.parametrize(
    ("user", "path", "is_anonymous"),
    [
        pytest.param("ana", "workloads", False, id="known user"),
        pytest.param("nobody", "workloads", True, id="unknown token"),
        pytest.param("nobody", "no/such/route", True, id="unknown route"),
    ],
)
async def test_request_log_marks_lines_about_anonymous_requests(
    user, path, is_anonymous, simulated, caplog
):
    caplog.set_level(logging.INFO, "runai.requests")

    async with simulated.http(user) as http:
        await http.post(f"api/v1/{path}", json={})

    (record,) = [r for r in caplog.records if r.name == "runai.requests"]
    assert record.is_anonymous == is_anonymous


@pytest.fixture
def identity_hub() -> Iterator[ThreadingHTTPServer]:
    """A hub that identifies any token as ana's, with `scopes`.

    `ids` maps each requested path to its request id.
    """

    class IdentityHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ids[self.path] = self.headers["X-Request-ID"]
            self.send_response(200)
            self.end_headers()
            user_model = {
                "kind": "user",
                "name": "ana",
                "groups": [],
                "admin": False,
                "scopes": scopes,
            }
            is_user_list = self.path.partition("?")[0].endswith("/users")
            self.wfile.write(json.dumps([user_model] if is_user_list else user_model).encode())

        def log_message(self, *_: object) -> None: ...

    ids: dict[str, str | None] = {}
    scopes = ["access:services!service=runai", "custom:runai:submit"]
    with ThreadingHTTPServer(("127.0.0.1", 0), IdentityHandler) as hub:
        hub.ids = ids  # type: ignore[attr-defined]
        hub.scopes = scopes  # type: ignore[attr-defined]
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


async def test_hub_request_about_a_user_has_the_id_of_the_callers_request(
    simulated, http, identity_hub, make_authenticator
):
    authenticator = make_authenticator(f"http://127.0.0.1:{identity_hub.server_port}/hub/api")
    simulated.platform.authenticator = authenticator
    reply = await http.get("api/v1/whoami", headers={"X-Request-ID": "mine"})

    assert (reply.status_code, reply.json()["name"]) == (200, "ana")
    assert identity_hub.ids == {"/hub/api/user": "mine", "/hub/api/users/ana": "mine"}


async def test_readiness_endpoint_fails_without_database_and_at_shutdown(simulated, http):
    platform = simulated.platform
    platform.checks = {"scheduler": platform.controller.unhealthy_reason}

    async def is_ready() -> bool:
        return bool((await http.get("health/ready")).json() == {"status": "ready"})

    await eventually_async(is_ready)
    platform.checks = {"scheduler": lambda: "", "database": lambda: "database or disk is full"}
    reply = await http.get("health/ready")
    assert (reply.status_code, reply.json()["because"]) == (503, "database")
    platform.checks = {}
    platform.shutdown.set()
    assert (await http.get("health/ready")).json()["because"] == "leaving"
    assert (await http.get("health/live")).status_code == 200


async def test_submission_with_a_repeated_idempotency_key_stores_no_second_job(http):
    key = {"Idempotency-Key": "0123456789abcdef"}

    first = await http.post("api/v1/workloads", json=JOB, headers=key)
    again = await http.post("api/v1/workloads", json=JOB, headers=key)

    assert (first.status_code, again.status_code) == (201, 201)
    ids = [w["id"] for w in first.json()["workloads"]]
    assert [w["id"] for w in again.json()["workloads"]] == ids
    assert [w["id"] for w in (await http.get("api/v1/workloads")).json()["items"]] == ids


async def test_concurrent_submissions_with_one_idempotency_key_store_one_job(http):
    key = {"Idempotency-Key": "0123456789abcdef"}

    replies = await asyncio.gather(
        *(http.post("api/v1/workloads", json=JOB, headers=key) for _ in range(5))
    )

    assert {reply.status_code for reply in replies} == {201}
    assert len((await http.get("api/v1/workloads")).json()["items"]) == 1


async def test_idempotency_key_is_separate_for_each_user(http):
    key = {"Idempotency-Key": "0123456789abcdef"}
    await http.post("api/v1/workloads", json=JOB, headers=key)

    mia_headers = {**key, "Authorization": "Bearer mia-token"}
    reply = await http.post("api/v1/workloads", json=JOB, headers=mia_headers)

    assert [w["user"] for w in reply.json()["workloads"]] == ["mia"]


async def test_malformed_idempotency_key_is_refused(http):
    reply = await http.post("api/v1/workloads", json=JOB, headers={"Idempotency-Key": "a b"})

    assert reply.status_code == 400


@pytest.mark.timeout(600)  # three starts of a service
def test_service_restarts_under_load_lose_and_double_no_acknowledged_change(service, identity_hub):
    identity_hub.scopes.append("custom:runai:admin")
    service.environment |= {
        "RUNAI_LOG_FORMAT": "json",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{identity_hub.server_port}/hub/api",
        "JUPYTERHUB_API_TOKEN": "unused",
    }
    service.start()
    actions = [(submit_workload, TOKEN)] * 2 + [
        (suspend_workload, TOKEN),
        (delete_workload, TOKEN),
        (change_quota, "an-admins"),
    ]

    with running_clients(service.client.url, actions) as acknowledged:

        def has_counts(rounds: int) -> bool:
            """Two clients submit, and one client makes each other change."""
            submitted, *other_counts = acknowledged.counts()
            return submitted >= 4 * rounds and min(other_counts) >= 2 * rounds

        for rounds, stop_signal in enumerate((signal.SIGTERM, signal.SIGKILL), start=1):
            eventually(partial(has_counts, rounds), within=120)
            service.stop(stop_signal)
            service.start()
        eventually(partial(has_counts, 3), within=120)

    eventually(
        lambda: {w.id for w in service.client.workloads()} == acknowledged.remaining, within=60
    )
    assert (
        acknowledged.contradictions({w.id: str(w.state) for w in service.client.workloads()}) == []
    )
    assert service.client.project("side").quota == acknowledged.quotas[-1]
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    posts = [line for line in lines if line["message"].startswith("POST")]
    # A request that a stopping service could not serve is a warning: its client retried.
    assert {line["level"] for line in posts} <= {"info", "warning"}
    assert all(re.fullmatch(r"[0-9a-f]{16}", line["request"]) for line in posts)
    assert len({line["request"] for line in posts}) >= len(acknowledged.submitted)
