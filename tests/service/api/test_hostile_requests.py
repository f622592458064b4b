"""Requests of a hostile user, page or node: one sentence refuses each, and nothing is stored."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from typing import Any
from urllib.parse import quote

import pytest

from runai.hub_service.api.services.event_stream import CHECK_EVERY_S, with_heartbeats
from runai.hub_service.model.records import StateReason
from runai.hub_service.processes.log_lines import JsonLines, LogLines
from runai.hub_service.wire.errors import Unauthenticated
from runai.hub_service.wire.printable import for_terminal, printable
from runai.hub_service.wire.workload_request import SubmitRequest

JSON = {"Content-Type": "application/json"}
UNPRINTABLE_CHARACTERS = {
    "NUL": "\0",
    "newline": "\n",
    "escape": "\x1b[2J",
    "C1": "\x9b2J",
    "right to left": "\u202e",
    "line separator": "\u2028",
}


async def send_request(served, user: str, method: str, path: str, **request: Any):
    async with served.http(user) as http:
        return await http.request(method, path, **request)


def job(**fields: Any) -> bytes:
    return json.dumps({"name": "x", "command": ["true"], **fields}).encode()


# -- requests that change nothing ----------------------------------------------------------------

BODIES = [
    pytest.param(b"[" * 200_000, 400, "invalid_json", id="nested beyond Python's recursion"),
    pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400, "invalid_json", id="nested"),
    pytest.param(b'{"gpus":' + b"9" * 5000 + b"}", 400, "invalid_json", id="a long number"),
    pytest.param(b"\xff\xfe{", 400, "invalid_json", id="no UTF-8"),
    pytest.param(job(env={"A": "x" * 10_000_000}), 413, "too_large", id="10 MB"),
    pytest.param(job(env={"A": "x" * 140_000}), 400, "invalid_request", id="a long variable"),
    pytest.param(job(env={f"A{i}": "x" * 100_000 for i in range(20)}), 400, "invalid_request",
                 id="many long variables"),
    pytest.param(job(command=["x" * 100_000] * 20), 400, "invalid_request", id="long arguments"),
    pytest.param(job(array=10_000, workers=10_000), 400, "invalid_request",
                 id="a hundred million workers"),
    pytest.param(job(command=["a\0b"]), 400, "invalid_request", id="NUL in an argument"),
    pytest.param(job(env={"A": "a\0b"}), 400, "invalid_request", id="NUL in a variable"),
    pytest.param(b'{"command":["\\ud800"]}', 400, "invalid_request", id="half a surrogate pair"),
    pytest.param(b'{"command":["true"],"env":{"A":"\\udfff"}}', 400, "invalid_request",
                 id="half a surrogate pair in a variable"),
    pytest.param(job(env={"A\n": "b"}), 400, "invalid_request", id="newline in a variable's name"),
    pytest.param(job(workdir="/a\0b"), 400, "invalid_request", id="NUL in a directory"),
    pytest.param(job(workdir="/tmp/\x1b[31m"), 400, "invalid_request", id="escape in a directory"),
    pytest.param(job(workdir="/" + "a" * 4000), 400, "no_such_directory", id="a long directory"),
    pytest.param(job(workdir="/../../etc/shadow"), 400, "no_such_directory", id="a file"),
    pytest.param(job(name="../../x"), 400, "invalid_request", id="parent folder in a name"),
    pytest.param(job(project="../vision"), 400, "invalid_request", id="parent folder in a project"),
    pytest.param(job(gpu_memory_mib=10**400), 400, "invalid_request", id="a huge number"),
    pytest.param(job(gpus="1e999999999"), 400, "invalid_request", id="a huge power"),
    pytest.param(job(gpus="1_0" * 30), 400, "invalid_request", id="digits with underscores"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status", "code"), BODIES)
async def test_hostile_submission_is_refused_and_stores_nothing(simulated, body, status, code):
    for path in ("api/v1/workloads", "api/v1/workloads?dry_run=true"):
        reply = await send_request(simulated, "ana", "POST", path, content=body, headers=JSON)

        problem = reply.json()
        assert (reply.status_code, problem["code"]) == (status, code), path
        assert len(problem["detail"]) < 1100
        assert problem["detail"].isprintable()
    assert await simulated.platform.cluster.workloads() == []


async def test_request_body_without_content_length_is_refused_above_the_size_limit(simulated):
    async def endless():
        for _ in range(200):
            yield b" " * 100_000

    reply = await send_request(
        simulated, "ana", "POST", "api/v1/workloads", content=endless(), headers=JSON
    )

    assert reply.status_code == 413


HOSTILE_QUERIES = [
    pytest.param("usage?since=0001-01-01T00:00:00%2B14:00", 200, id="before the calendar"),
    pytest.param("usage?until=9999-12-31T23:59:59-14:00", 200, id="after the calendar"),
    pytest.param("usage?since=0001-01-01T00:00:00Z&step_s=1", 200, id="two thousand years"),
    pytest.param(
        "usage/by/node?since=0001-01-01T00:00:00%2B14:00", 200, id="averages before the calendar"
    ),
    pytest.param("usage?workload=%00", 404, id="NUL as a workload"),
    pytest.param("workloads/..%2f..%2fetc/passwd", 404, id="parent folder in an id"),
    pytest.param("workloads/vision/%0d%0aSet-Cookie:%20a=b", 404, id="a header in a name"),
    pytest.param("workloads/vision/" + "a" * 5000, 404, id="a long name"),
    pytest.param("workloads/vision/%ff", 404, id="no UTF-8"),
    pytest.param("workloads?project=%1b[2J", 200, id="an escape"),
]


@pytest.mark.parametrize(("path", "status"), HOSTILE_QUERIES)
async def test_hostile_query_string_is_answered_or_refused_with_one_printable_line(
    simulated, path, status
):
    reply = await send_request(simulated, "ana", "GET", f"api/v1/{path}")

    assert reply.status_code == status
    assert "set-cookie" not in reply.headers
    if status >= 400:
        assert reply.json()["detail"].isprintable()
        assert len(reply.content) < 2000


@pytest.mark.parametrize("character", UNPRINTABLE_CHARACTERS.values(), ids=UNPRINTABLE_CHARACTERS)
async def test_job_or_project_name_with_an_unprintable_character_is_refused(simulated, character):
    for user, method, path, body in (
        ("root", "PUT", "projects/new", {"members": [f"a{character}b"]}),
        ("root", "PUT", "projects/new", {"node_types_build": [f"a{character}b"]}),
        ("root", "PUT", f"projects/{quote(f'a{character}b')}", {"quota": 1}),
        ("ana", "POST", "workloads", {"name": f"a{character}b", "command": ["true"]}),
        ("ana", "POST", "workloads", {"image": f"a{character}b", "command": ["true"]}),
        (
            "hub",
            "POST",
            "workloads",
            {"kind": "session", "owner": "ana", "server": f"a{character}b"},
        ),
    ):
        reply = await send_request(simulated, user, method, f"api/v1/{path}", json=body)
        assert reply.status_code in {400, 404}, path
        assert reply.json()["detail"].isprintable()
    assert {p.spec.name for p in await simulated.platform.cluster.projects()} == {"vision", "nlp"}
    assert await simulated.platform.cluster.workloads() == []


async def test_too_many_workers_in_a_what_if_question_are_refused(simulated):
    add = [{"project": "vision", "gpus": "1", "array": 600}] * 2
    reply = await send_request(simulated, "ana", "POST", "api/v1/plan", json={"add": add})

    assert reply.status_code == 400
    assert "at most 1000 workers" in reply.json()["detail"]


# -- markup, headers, spreadsheets ---------------------------------------------------------------


async def test_every_reply_has_headers_that_forbid_scripts_and_caching(simulated):
    for path in ("health", "metrics", "api/v1/openapi.json", "api/v1/overview", "nothing",
                 "usage/project.csv", "static/live.js", ""):  # fmt: skip
        reply = await send_request(simulated, "ana", "GET", path)

        assert reply.headers["x-content-type-options"] == "nosniff", path
        assert "default-src 'none'" in reply.headers["content-security-policy"], path
        assert "frame-ancestors" in reply.headers["content-security-policy"], path
        assert ("no-store" in reply.headers["cache-control"]) == (not path.startswith("static")), (
            path
        )


@pytest.mark.parametrize(
    "path",
    ["?range=%3Cscript%3Ealert(1)%3C/script%3E", "workloads/vision/%3Cscript%3E",
     "usage?range=%22%3E%3Cimg%20src=x%3E"],
)  # fmt: skip
async def test_markup_in_a_url_is_escaped_in_the_reply(simulated, path):
    reply = await send_request(simulated, "ana", "GET", path)

    assert reply.status_code in {400, 404}
    assert "<script>alert" not in reply.text
    assert "<img" not in reply.text
    assert "vision/<script>" not in reply.text


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "|calc"]


@pytest.mark.parametrize("name", FORMULAS)
async def test_usage_csv_cell_never_starts_a_formula(name):
    from runai.hub_service.api.pages.page_routes import _cell

    assert _cell(name).startswith(("'", "\\"))
    assert "\n" not in _cell(name + "\n=1")


# -- facts that other users see ------------------------------------------------------------------


async def test_project_members_see_no_program_or_path_in_a_job_failure_reason(simulated):
    ana, mia, vic = [await simulated.client(name) for name in ("ana", "mia", "vic")]
    (workload,) = (await ana.submit(SubmitRequest(name="exp1", command=["true"]))).workloads
    secret = "cannot start /home/ana/secret-project/train.py: no such file"
    cluster = simulated.platform.cluster
    row = cluster.index[workload.id]
    from dataclasses import replace

    record = replace(row, reason=StateReason("not_started", secret))
    cluster.index[workload.id] = record

    reasons = {
        user: (await client.workloads())[0].reason.text
        for user, client in {"ana": ana, "mia": mia, "vic": vic}.items()
    }
    page = await send_request(simulated, "mia", "GET", "workloads/vision/exp1")

    assert reasons == {"ana": secret, "vic": secret, "mia": "could not be started"}
    assert "secret-project" not in page.text


# -- a node that lies ----------------------------------------------------------------------------


def report(**fields: Any) -> dict[str, Any]:
    return {"node": "lab", "at": time.time(), "interval": 1, "devices": [], "samples": [], **fields}


async def device_uuid(served) -> str:
    overview = await send_request(served, "ana", "GET", "api/v1/overview")
    return str(overview.json()["nodes"][0]["devices"][0]["uuid"])


@pytest.mark.parametrize(
    "fields_json",
    [
        pytest.param('{"at": NaN}', id="time that is no number"),
        pytest.param('{"at": 1e999}', id="infinite time"),
        pytest.param('{"interval": -1}', id="negative interval"),
        pytest.param('{"age": 1e999}', id="infinite age"),
        pytest.param('{"devices": [{"device": "d", "utilization": NaN, "memory_mib": 0}]}',
                     id="utilization that is no number"),
        pytest.param('{"devices": [{"device": "d", "utilization": 0, "memory_mib": -5}]}',
                     id="negative memory"),
    ],
)  # fmt: skip
async def test_agent_report_with_impossible_values_is_refused(simulated, fields_json):
    body = json.dumps({**report(), **json.loads(fields_json)}).encode()
    path = "api/v1/nodes/lab/samples"
    reply = await send_request(simulated, "agent", "POST", path, content=body, headers=JSON)

    assert reply.status_code == 400


async def test_agent_report_of_a_node_does_not_change_devices_of_foreign_nodes(simulated):
    local_uuid, foreign_uuid = await device_uuid(simulated), "GPU-of-another-node"
    figures = {"utilization": 1.0, "memory_mib": 7}
    body = report(
        devices=[{"device": uuid, **figures} for uuid in (local_uuid, foreign_uuid)],
        samples=[
            {"workload": workload, "device": uuid, **figures}
            for uuid in (local_uuid, foreign_uuid)
            for workload in ("", "nlp/missing")
        ],
    )
    reply = await send_request(simulated, "agent", "POST", "api/v1/nodes/lab/samples", json=body)

    assert reply.status_code == 200
    ledger = simulated.platform.ledger
    assert ledger.device(local_uuid) == (1.0, 7)
    assert ledger.device(foreign_uuid) is None
    assert ledger.current("nlp/missing") is None


async def test_agent_report_with_a_hostile_process_name_is_accepted(simulated):
    uuid = await device_uuid(simulated)
    process = {
        "device": uuid, "pid": 7, "workload": "", "worker": "", "account": "eve",
        "name": "a\x1b[2J\n\udcff", "notebook": "<script>", "utilization": 0.5, "memory_mib": 1,
    }  # fmt: skip
    body = json.dumps(report(processes=[process])).encode()
    path = "api/v1/nodes/lab/samples"
    reply = await send_request(simulated, "agent", "POST", path, content=body, headers=JSON)
    nodes = await send_request(simulated, "root", "GET", "api/v1/nodes")

    assert (reply.status_code, nodes.status_code) == (200, 200)
    assert nodes.json()[0]["devices"][0]["others"][0]["processes"] == 1


def test_agent_report_escapes_an_unencodable_process_name():
    from runai.hub_service.wire.reports import AgentReport

    process = {"device": "d", "pid": 7, "workload": "", "worker": "", "account": "eve",
               "name": "odd\udcff\n", "utilization": None, "memory_mib": None}  # fmt: skip
    sent = AgentReport.model_validate(report(processes=(process,))).model_dump_json()

    assert json.loads(sent)["processes"][0]["name"] == r"odd\udcff\n"


# -- streams, logs, terminals --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jitter_s", "silences"),
    [pytest.param(0.0, 1, id="latest check"), pytest.param(15.0, 0, id="early check")],
)
async def test_silent_event_stream_rechecks_its_readers_permission_within_a_minute(
    monkeypatch, jitter_s, silences
):
    """A revoked reader loses the stream in less than a minute.

    The stream checks its reader after 20 s, and the hub's answer is cached for 30 s.
    """
    from runai.hub_service.api.auth.hub_auth import CACHE_TTL_S

    now = 0.0

    async def wait(_futures, **options):
        nonlocal now
        now += options["timeout"]
        await asyncio.sleep(0)

    async def silent():
        await asyncio.Event().wait()
        yield b""

    async def check():
        raise Unauthenticated("revoked")

    monkeypatch.setattr(
        "runai.hub_service.api.services.event_stream.SystemRandom.uniform",
        lambda _self, _low, _high: jitter_s,
    )
    monkeypatch.setattr("runai.hub_service.api.services.event_stream.time.monotonic", lambda: now)
    monkeypatch.setattr("runai.hub_service.api.services.event_stream.asyncio.wait", wait)
    heartbeats = [s async for s in with_heartbeats(silent(), b":", check, asyncio.Event())]

    assert now == CHECK_EVERY_S - jitter_s
    assert len(heartbeats) == silences
    assert now + CACHE_TTL_S <= 60


def test_log_record_with_line_breaks_forges_no_record():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogLines("%(levelname)s %(name)s: %(message)s"))
    record = logging.LogRecord(
        "runai.api", logging.ERROR, "", 0, "no %s", ("x\nERROR runai.api: forged\x1b[2J",), None
    )
    try:
        logging.getLevelNamesMapping()["a\nERROR runai.api: forged"]
    except KeyError as error:
        record.exc_info = (KeyError, error, error.__traceback__)
    handler.emit(record)

    lines = stream.getvalue().splitlines()
    assert [line for line in lines if line.startswith("ERROR")] == lines[:1]
    assert lines[0] == r"ERROR runai.api: no x\nERROR runai.api: forged\x1b[2J"
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("lines", [LogLines("%(message)s"), JsonLines()], ids=["text", "json"])
def test_long_log_arguments_are_truncated(lines):
    record = logging.LogRecord("uvicorn", logging.WARNING, "", 0, "GET %s", ("/x" * 9999,), None)
    logged = lines.format(record)

    assert "/x" * 99 in logged
    assert "/x" * 101 not in logged


TERMINAL_OUTPUT = {
    "colours stay": ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
    "a progress bar stays": ("10 %\r20 %", "10 %\r20 %"),
    "the screen is not cleared": ("\x1b[2J", r"\x1b[2J"),
    "the title is not set": ("\x1b]0;root#\x07", r"\x1b]0;root#\x07"),
    "the clipboard is not written": ("\x1b]52;c;cm0=\x07", r"\x1b]52;c;cm0=\x07"),
    "8-bit controls are seen": ("\x9b2J", r"\x9b2J"),
    "writing is not turned round": ("\u202efdp.exe", r"\u202efdp.exe"),
    "a terminal does not answer": ("\x1b[c\x1b[6n", r"\x1b[c\x1b[6n"),
}


@pytest.mark.parametrize(("line", "expected"), TERMINAL_OUTPUT.values(), ids=TERMINAL_OUTPUT)
def test_terminal_output_escapes_dangerous_control_sequences(line, expected):
    assert for_terminal(line) == expected


@pytest.mark.parametrize("character", UNPRINTABLE_CHARACTERS.values(), ids=UNPRINTABLE_CHARACTERS)
def test_printable_returns_only_printable_characters(character):
    assert printable(f"a{character}b").isprintable()
