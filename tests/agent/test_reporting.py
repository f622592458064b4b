"""Delivery of reports: over one connection, again after a disconnect, and never twice."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator

import pytest

from report_server import ReportServer, report_server
from runai.hub_service.agent.reporting import HttpReporter
from runai.hub_service.processes.log_lines import LogLines
from runai.hub_service.wire import problems
from runai.hub_service.wire.errors import InvalidRequest, Unauthenticated, Unavailable
from runai.hub_service.wire.reports import AgentReport

TOKEN = "not-to-be-told"


@pytest.fixture
def service() -> Iterator[ReportServer]:
    with report_server() as server:
        yield server


@pytest.fixture
def reporter(service) -> Iterator[HttpReporter]:
    reporter = HttpReporter(service.url, TOKEN)
    yield reporter
    reporter.close()


def report(at: float) -> AgentReport:
    return AgentReport(node="a b", at=at, interval=1.0, devices=[], samples=[])


def reply_with_allocation(name: str) -> str:
    fields: dict[str, object] = {
        "workload": name,
        "worker": name,
        "project": "vision",
        "user": "ana",
        "shares": [],
        "pid": None,
        "created": None,
    }
    return json.dumps({"allocations": [fields], "of a newer service": 1})


async def test_reporter_sends_its_token_and_uses_one_connection_for_all_reports(service, reporter):
    for at in (1.0, 2.0, 3.0):
        await reporter.report(report(at))

    assert [r.at for r in service.reports] == [1.0, 2.0, 3.0]
    assert len(service.clients) == 1
    assert service.requested == {("/services/runai/api/v1/nodes/a%20b/samples", f"Bearer {TOKEN}")}


async def test_agent_report_has_its_own_id_which_a_refusal_names(service, reporter, caplog):
    caplog.handler.setFormatter(LogLines("%(message)s"))
    await reporter.report(report(1.0))
    service.status, service.reply = (
        401,
        json.dumps({"title": "Unauthorized", "status": 401, "detail": "Nobody.", "code": "x"}),
    )
    with pytest.raises(Unauthenticated) as refused:
        await reporter.report(report(2.0))
    logging.getLogger("runai.agent").warning("the service refused a report: %s", refused.value)

    first, second = service.request_ids
    assert first != second
    assert problems.or_new(first) == first  # the service keeps a valid id
    assert caplog.text.rstrip().endswith(f"Nobody. [{second}]")


async def test_unchanged_reply_to_an_agent_report_is_not_parsed_again(service, reporter):
    service.reply = reply_with_allocation("vision/a")
    first, second = [await reporter.report(report(at)) for at in (1.0, 2.0)]
    service.reply = reply_with_allocation("vision/b")
    third = await reporter.report(report(3.0))

    assert first.allocations is second.allocations
    assert [a.workload for r in (second, third) for a in r.allocations] == ["vision/a", "vision/b"]


async def test_agent_report_after_a_disconnect_is_sent_once_over_a_new_connection(
    service, reporter
):
    service.hangs_up = True
    for at in (1.0, 2.0):
        await reporter.report(report(at))
        assert await asyncio.to_thread(service.has_hung_up.acquire, timeout=60)

    assert [r.at for r in service.reports] == [1.0, 2.0]
    assert len(service.clients) == 2


async def test_refused_agent_report_raises_the_error_of_the_service(service, reporter):
    service.status = 401
    service.reply = json.dumps(
        {
            "title": "Unauthorized",
            "status": 401,
            "detail": "Nobody.",
            "code": "x",
            "hint": "Go.",
        }
    )
    with pytest.raises(Unauthenticated, match="Nobody"):
        await reporter.report(report(1.0))
    service.status, service.reply = 200, reply_with_allocation("vision/a")

    assert (await reporter.report(report(2.0))).allocations


async def test_agent_report_to_an_unreachable_service_raises_an_error_without_token():
    with socket.socket() as unused_socket:
        unused_socket.bind(("127.0.0.1", 0))
        unreachable = HttpReporter(
            f"http://me:{TOKEN}@127.0.0.1:{unused_socket.getsockname()[1]}", TOKEN
        )
        with pytest.raises(Unavailable) as error:
            await unreachable.report(report(1.0))

    assert "is away" in str(error.value)
    assert TOKEN not in str(error.value)


async def test_closing_the_reporter_ends_a_pending_report(service, reporter, eventually_async):
    service.answers.clear()
    pending = asyncio.create_task(reporter.report(report(1.0)))
    await eventually_async(lambda: service.reports)
    reporter.close()

    with pytest.raises(Unavailable):
        await pending


@pytest.mark.parametrize("address", ["", "hub.example.org", "ftp://hub.example.org/"])
def test_agent_reporter_refuses_an_invalid_service_address(address):
    with pytest.raises(InvalidRequest, match="is no address of a GPU service"):
        HttpReporter(address, TOKEN)
