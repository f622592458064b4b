"""Streams on a real JupyterHub: strangers learn nothing, and a reader without permission is cut.

A revoked token and a removed group must take effect within a minute, in open streams too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx
import pytest

from hub_platform import ACCESS_SCOPE, SERVICE_PATH, HubPlatform
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

MINUTE_S = 60
SECRETS = ("secret-exp", "of-ana", "secret source", "sleep", '"ana"', ">ana<")


@dataclass
class Stream:
    """One open stream, read by its own thread."""

    reply: httpx.Response
    ended: threading.Event = field(default_factory=threading.Event)
    text: str = ""

    def read(self) -> None:
        try:
            for piece in self.reply.iter_text():
                self.text += piece
        except httpx.HTTPError:  # closed by the test
            return
        self.ended.set()

    def events(self) -> list[str]:
        return self.text.split("\n\n")[:-1]


@dataclass
class Streams:
    """A hub and its open streams."""

    hub: HubPlatform
    stack: ExitStack
    threads: ThreadPoolExecutor

    def open(self, token: str, path: str) -> Stream:
        http = httpx.Client(base_url=f"{self.hub.url}{SERVICE_PATH}", timeout=90)
        self.stack.enter_context(http)
        headers = {"Authorization": f"Bearer {token}"}
        reply = self.stack.enter_context(http.stream("GET", path, headers=headers))
        stream = Stream(reply)
        self.threads.submit(stream.read)
        return stream


@pytest.fixture
def streams(real_hub: HubPlatform) -> Iterator[Streams]:
    with ThreadPoolExecutor(8) as threads, ExitStack() as stack:
        yield Streams(real_hub, stack, threads)


def submit_job(hub: HubPlatform, user: str, project: str, name: str) -> str:
    """Submit a job as a user; return the token."""
    token = hub.token(user)
    job = {"project": project, "name": name, "command": ["sleep", "600"], "gpus": "0.25",
           "env": {"A": "of-ana"}, "source": "# secret source", "grace_seconds": 1}  # fmt: skip
    reply = hub.call_service(token, "api/v1/workloads", "POST", json=job)
    assert reply.is_success, reply.text
    return token


def allocated_in_event(event: str, project: str) -> float:
    """Return a project's allocated GPUs in an event."""
    (line,) = (line for line in event.splitlines() if line.startswith("data: "))
    projects = json.loads(line.removeprefix("data: "))["projects"]
    return float(next(each["allocated"] for each in projects if each["name"] == project))


def test_streams_reveal_no_workload_of_a_foreign_project(streams):
    """Covers workloads that exist when a stream is opened and workloads that start later."""
    hub = streams.hub
    ana_token = submit_job(hub, "ana", "vision", "secret-exp-1")
    outsider_token = hub.token("otto")
    events = streams.open(outsider_token, "api/v1/events")
    page = streams.open(outsider_token, "live/gpus")
    refused = {
        path: streams.open(outsider_token, path).reply.status_code
        for path in (
            "live/workloads/vision/secret-exp-1",
            "api/v1/workloads/vision/secret-exp-1/logs?follow=true",
        )
    }
    eventually(lambda: events.events() and page.events(), what="both have sent the present")
    rendered_before = len(page.events())
    submit_job(hub, "ana", "vision", "secret-exp-2")

    eventually(
        lambda: allocated_in_event(events.events()[-1], "vision") == 0.5,
        what="two jobs have 0.25 each",
    )
    eventually(lambda: len(page.events()) > rendered_before, what="on the page, too")
    streamed_text = events.text + page.text
    for name in ("secret-exp-1", "secret-exp-2"):
        hub.call_service(ana_token, f"api/v1/workloads/vision/{name}", "DELETE")
    assert set(refused.values()) == {404}
    assert [secret for secret in SECRETS if secret in streamed_text] == []


@pytest.mark.slow
def test_open_streams_of_a_revoked_token_end_within_a_minute(streams):
    hub = streams.hub
    ana_token = submit_job(hub, "ana", "vision", "watched-exp")
    created_token = hub.http.post(
        "/hub/api/users/ana/tokens", json={"scopes": [ACCESS_SCOPE]}
    ).json()
    paths = ("api/v1/events", "live/gpus", "live/workloads/vision/watched-exp",
             "api/v1/workloads/vision/watched-exp/logs?follow=true")  # fmt: skip
    open_streams = {path: streams.open(created_token["token"], path) for path in paths}
    assert {stream.reply.status_code for stream in open_streams.values()} == {200}

    hub.http.delete(f"/hub/api/users/ana/tokens/{created_token['id']}").raise_for_status()

    def all_have_ended() -> bool:
        return all(stream.ended.is_set() for stream in open_streams.values())

    eventually(all_have_ended, within=MINUTE_S)
    hub.call_service(ana_token, "api/v1/workloads/vision/watched-exp", "DELETE")


@pytest.mark.slow
def test_open_streams_hide_a_workload_within_a_minute_after_reader_loses_group(streams):
    hub = streams.hub
    owner_token = submit_job(hub, "nia", "watched", "groups-exp")
    token = hub.token("wim")
    watchers = "/hub/api/groups/watchers"
    hub.http.post(watchers).raise_for_status()
    hub.http.post(f"{watchers}/users", json={"users": ["wim"]}).raise_for_status()
    output = streams.open(token, "api/v1/workloads/watched/groups-exp/logs?follow=true")
    page = streams.open(token, "live/workloads/watched/groups-exp")
    events = streams.open(token, "api/v1/events")
    eventually(lambda: "groups-exp" in events.text, what="it is shown")
    assert (output.reply.status_code, page.reply.status_code) == (200, 200)

    body = {"users": ["wim"]}
    hub.http.request("DELETE", f"{watchers}/users", json=body).raise_for_status()

    def is_absent_from_events() -> bool:
        return "groups-exp" not in events.events()[-1]

    def has_lost_access() -> bool:
        return output.ended.is_set() and page.ended.is_set() and is_absent_from_events()

    eventually(has_lost_access, within=MINUTE_S)
    assert not events.ended.is_set()
    hub.call_service(owner_token, "api/v1/workloads/watched/groups-exp", "DELETE")
