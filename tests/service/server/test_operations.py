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

from restarted_under_load import changes, deletes, going_on, submits, suspends
from service_process import TOKEN
from waiting import eventually, eventually_async

JOB = {"gpus": 1, "command": ["sleep", "600"], "grace_seconds": 1}


@pytest.fixture
async def http(simulated):
    async with simulated.http("ana") as client:
        yield client


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        pytest.param("load-7.3", True, id="plain"),
        pytest.param("a" * 64, True, id="as long as may be"),
        pytest.param("a" * 65, False, id="too long"),
        pytest.param("a b", False, id="two words"),
        pytest.param('"}, {"level', False, id="JSON"),
        pytest.param("", False, id="empty"),
        pytest.param(None, False, id="none"),
    ],
)
async def test_a_request_keeps_its_id_where_it_may_stand_in_a_log(given, is_kept, http):
    headers = {} if given is None else {"X-Request-ID": given}

    reply = await http.get("api/v1/projects", headers=headers)

    told = reply.headers["X-Request-ID"]
    assert told == given if is_kept else re.fullmatch(r"[0-9a-f]{16}", told)


async def test_request_log_line_has_path_and_status_but_no_query(http, caplog):
    caplog.set_level(logging.INFO, "runai.requests")

    await http.post("api/v1/workloads?token=secret", json={}, headers={"X-Request-ID": "mine"})

    (line,) = [r.getMessage() for r in caplog.records if r.name == "runai.requests"]
    assert re.fullmatch(r"POST '/services/runai/api/v1/workloads' 4\d\d in \d+ ms", line)


async def test_paths_are_logged_short(http, caplog):
    caplog.set_level(logging.INFO, "runai.requests")

    await http.post("api/v1/" + "x%20" * 10_000)

    (line,) = [r.getMessage() for r in caplog.records if r.name == "runai.requests"]
    assert re.fullmatch(r"POST '/services/runai/api/v1/[x ]{177}' 404 in \d+ ms", line)


@pytest.mark.parametrize(
    ("who", "path", "is_anonymous"),
    [
        pytest.param("ana", "workloads", False, id="a user"),
        pytest.param("nobody", "workloads", True, id="an unknown token"),
        pytest.param("nobody", "no/such/route", True, id="no route"),
    ],
)
async def test_request_log_marks_lines_about_anonymous_requests(
    who, path, is_anonymous, simulated, caplog
):
    caplog.set_level(logging.INFO, "runai.requests")

    async with simulated.http(who) as http:
        await http.post(f"api/v1/{path}", json={})

    (record,) = [r for r in caplog.records if r.name == "runai.requests"]
    assert record.is_anonymous == is_anonymous


@pytest.fixture
def asked_hub() -> Iterator[ThreadingHTTPServer]:
    """A hub that identifies any token as ana's, with `scopes`.

    `ids` maps each requested path to its request id.
    """

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ids[self.path] = self.headers["X-Request-ID"]
            self.send_response(200)
            self.end_headers()
            told = {"kind": "user", "name": "ana", "groups": [], "admin": False, "scopes": scopes}
            everybody = self.path.partition("?")[0].endswith("/users")
            self.wfile.write(json.dumps([told] if everybody else told).encode())

        def log_message(self, *_: object) -> None: ...

    ids: dict[str, str | None] = {}
    scopes = ["access:services!service=runai", "custom:runai:submit"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as hub:
        hub.ids = ids  # type: ignore[attr-defined]
        hub.scopes = scopes  # type: ignore[attr-defined]
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        yield hub
        hub.shutdown()
        thread.join()


async def test_the_hub_is_asked_about_a_user_under_the_id_of_the_request(
    simulated, http, asked_hub, asking_hub
):
    users = asking_hub(f"http://127.0.0.1:{asked_hub.server_port}/hub/api")
    simulated.platform.authenticator = users
    reply = await http.get("api/v1/whoami", headers={"X-Request-ID": "mine"})

    assert (reply.status_code, reply.json()["name"]) == (200, "ana")
    assert asked_hub.ids == {"/hub/api/user": "mine", "/hub/api/users/ana": "mine"}


async def test_it_is_ready_when_what_is_asked_for_is_stored_and_decided_about(simulated, http):
    platform = simulated.platform
    platform.checks = {"scheduler": platform.controller.unhealthy_reason}

    async def is_ready() -> bool:
        return bool((await http.get("health/ready")).json() == {"status": "ready"})

    await eventually_async(is_ready)
    platform.checks = {"scheduler": lambda: "", "database": lambda: "database or disk is full"}
    reply = await http.get("health/ready")
    assert (reply.status_code, reply.json()["because"]) == (503, "database")
    platform.checks = {}
    platform.leaving.set()
    assert (await http.get("health/ready")).json()["because"] == "leaving"
    assert (await http.get("health/live")).status_code == 200


async def test_a_repeated_submission_stores_nothing_and_answers_the_same(http):
    key = {"Idempotency-Key": "0123456789abcdef"}

    first = await http.post("api/v1/workloads", json=JOB, headers=key)
    again = await http.post("api/v1/workloads", json=JOB, headers=key)

    assert (first.status_code, again.status_code) == (201, 201)
    ids = [w["id"] for w in first.json()["workloads"]]
    assert [w["id"] for w in again.json()["workloads"]] == ids
    assert [w["id"] for w in (await http.get("api/v1/workloads")).json()["items"]] == ids


async def test_repeats_at_the_same_time_store_once(http):
    key = {"Idempotency-Key": "0123456789abcdef"}

    replies = await asyncio.gather(
        *(http.post("api/v1/workloads", json=JOB, headers=key) for _ in range(5))
    )

    assert {reply.status_code for reply in replies} == {201}
    assert len((await http.get("api/v1/workloads")).json()["items"]) == 1


async def test_a_key_is_its_users_own(http):
    key = {"Idempotency-Key": "0123456789abcdef"}
    await http.post("api/v1/workloads", json=JOB, headers=key)

    mine = {**key, "Authorization": "Bearer mia-token"}
    reply = await http.post("api/v1/workloads", json=JOB, headers=mine)

    assert [w["user"] for w in reply.json()["workloads"]] == ["mia"]


async def test_a_key_that_is_none_is_refused(http):
    reply = await http.post("api/v1/workloads", json=JOB, headers={"Idempotency-Key": "a b"})

    assert reply.status_code == 400


@pytest.mark.timeout(600)  # three starts of a service
def test_a_rolling_restart_under_load_loses_and_doubles_nothing_that_was_acknowledged(
    service, asked_hub
):
    asked_hub.scopes.append("custom:runai:admin")
    service.environment |= {
        "RUNAI_LOG_FORMAT": "json",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{asked_hub.server_port}/hub/api",
        "JUPYTERHUB_API_TOKEN": "unused",
    }
    service.start()
    acts = [(submits, TOKEN)] * 2 + [(suspends, TOKEN), (deletes, TOKEN), (changes, "an-admins")]

    with going_on(service.client.url, acts) as told:

        def did(times: int) -> bool:
            submitted, *others = told.counts()
            return submitted >= 4 * times and min(others) >= 2 * times

        for times, how in enumerate((signal.SIGTERM, signal.SIGKILL), start=1):
            eventually(partial(did, times), within=120)
            service.stop(how)
            service.start()
        eventually(partial(did, 3), within=120)

    eventually(lambda: {w.id for w in service.client.workloads()} == told.kept, within=60)
    assert told.wrong({w.id: str(w.state) for w in service.client.workloads()}) == []
    assert service.client.project("side").quota == told.quotas[-1]
    lines = [json.loads(line) for line in service.log.read_text().splitlines()]
    posts = [line for line in lines if line["message"].startswith("POST")]
    # A request that a stopping service could not serve is a warning: its client retried.
    assert {line["level"] for line in posts} <= {"info", "warning"}
    assert all(re.fullmatch(r"[0-9a-f]{16}", line["request"]) for line in posts)
    assert len({line["request"] for line in posts}) >= len(told.submitted)
