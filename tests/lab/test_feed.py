"""The frames of a notebook server: one upstream stream for all windows, through restarts."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from in_process_service import running_service
from overviews import overview, project, workload
from ports import free_port
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.client import AsyncClient
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.wire.device_schemas import DeviceView
from runai.hub_service.wire.schemas import ExpectedStartView, ReasonView
from runai.hub_service.wire.workload_request import SubmitRequest
from runai.lab.feed import MAX_FRAME, Feed, banner, free_text

QUICK_S = 0.05


@asynccontextmanager
async def windows(feed, count):
    """Open windows; yield the frames that each has got."""
    frames: list[list[str]] = [[] for _ in range(count)]
    listeners = [frames_of_window.append for frames_of_window in frames]
    for listener in listeners:
        feed.add(listener)
    try:
        yield frames
    finally:
        for listener in listeners:
            feed.remove(listener)


def session_environment(service):
    return {"RUNAI_API_URL": service.url, "JUPYTERHUB_API_TOKEN": service.tokens["bob"]}


def upstream_count(service):
    return sum(feed.readers for feed in service.platform.feeds._feeds.values())


async def test_three_windows_share_one_upstream_stream_and_the_last_ends_it(
    service, eventually_async
):
    feed = Feed(session_environment(service), every_s=QUICK_S)

    async with windows(feed, 3) as frames:
        await eventually_async(lambda: all(frames))
        assert upstream_count(service) == 1
        async with windows(feed, 1) as late:
            assert late[0] == [frames[0][-1]]  # at once, without a request

    await eventually_async(lambda: upstream_count(service) == 0)


async def test_frames_differ_from_one_another_and_follow_changes(service, bob, eventually_async):
    feed = Feed(session_environment(service), every_s=QUICK_S)
    async with windows(feed, 1) as (frames,):
        await eventually_async(lambda: frames)

        async with AsyncClient(service.url, service.tokens["bob"]) as client:
            await client.submit(SubmitRequest(name="exp", gpus=1, command=["sleep", "600"]))

        def running():
            rows = json.loads(frames[-1])["state"]["workloads"]
            return [row["state"] for row in rows] == ["running"]

        await eventually_async(running)
        assert all(one != other for one, other in pairwise(frames))


async def test_windows_say_that_the_service_is_away_and_are_live_again_after_it(
    tmp_path, eventually_async, monkeypatch
):
    monkeypatch.setattr("runai.lab.feed.PATIENCE_S", 0.2)
    monkeypatch.setattr("runai.lab.feed.RETRY_S", 0.1)
    spec, port = ProjectSpec("vision", members=("bob",)), free_port()
    arguments = tmp_path / "data", [Actor("bob")], [spec]
    with running_service(*arguments, gpus=1, port=port) as service:
        feed = Feed(session_environment(service), every_s=QUICK_S)
        frames: list[str] = []
        feed.add(frames.append)
        await eventually_async(lambda: frames)
    await eventually_async(lambda: "lost" in json.loads(frames[-1]))
    status = json.loads(frames[-1])["status"]
    with running_service(*arguments, gpus=1, port=port):
        await eventually_async(lambda: "state" in json.loads(frames[-1]))
    feed.remove(frames.append)

    assert (status["text"], status["level"]) == ("disconnected", "disconnected")


async def test_windows_say_that_a_frame_cannot_be_made(service, eventually_async, monkeypatch):
    def fail(*_):
        raise KeyError("state")

    monkeypatch.setattr("runai.lab.feed._frames", lambda: fail)
    feed = Feed(session_environment(service), every_s=QUICK_S)

    async with windows(feed, 1) as (frames,):
        await eventually_async(lambda: frames)

    assert "cannot show it" in json.loads(frames[0])["lost"]


async def test_frame_of_thousands_of_jobs_is_bounded(service, bob, eventually_async, monkeypatch):
    monkeypatch.setattr("runai.lab.feed.MAX_FRAME", 3000)
    monkeypatch.setattr("runai.lab.feed.MAX_ROWS", 2)
    async with AsyncClient(service.url, service.tokens["bob"]) as client:
        for number in range(5):
            await client.submit(SubmitRequest(name=f"exp-{number}", gpus=5, command=["sleep", "9"]))
    feed = Feed(session_environment(service), every_s=QUICK_S)

    async with windows(feed, 1) as (frames,):
        await eventually_async(lambda: frames)

    assert len(json.loads(frames[0])["state"]["workloads"]) == 2
    assert MAX_FRAME == 2**20


NO_GPU: Any = {"allocated": 0, "kind": "session"}


@pytest.mark.parametrize(
    ("session", "words"),
    [
        pytest.param(workload("lab", allocated=1, kind="session"), "", id="with its GPU"),
        pytest.param(workload("lab", gpus=0, **NO_GPU), "", id="without a request"),
        pytest.param(workload("lab", "ended", **NO_GPU), "", id="ended"),
        pytest.param(
            workload(
                "lab",
                "queued",
                reason=ReasonView(code="no_room", text="all 5 GPUs are in use"),
                expected_start=ExpectedStartView(
                    at=None, earliest=None, latest=None, is_estimated=False, text="starts at 14:10"
                ),
                **NO_GPU,
            ),
            "This session waits for its GPU: all 5 GPUs are in use; starts at 14:10.",
            id="waiting",
        ),
        pytest.param(
            workload(
                "lab",
                released="2026-05-04T11:40:00Z",
                reason=ReasonView(code="released", text="idle for 20 min."),
                **NO_GPU,
            ),
            "This session goes on without its GPU: idle for 20 min. Get GPU back asks for it again;"
            " restart kernels that used it.",
            id="released",
        ),
    ],
)
def test_banner_says_why_a_session_has_no_gpu_and_what_to_do(session, words):
    assert banner(session) == words


@pytest.mark.parametrize(
    ("allocated", "text"),
    [([0, 0], "2 of 2 GPUs free"), ([1, 0.5], "0.5 of 2 GPUs free, 0 of them whole")],
    ids=["all", "half of one"],
)
def test_free_gpus_are_counted_in_parts_and_whole(allocated, text):
    found = overview(projects=(project("vision"),))
    devices = [
        DeviceView(device=n, uuid=f"{n}", name="GPU", memory_mib=1, simulated=True, allocated=part)
        for n, part in enumerate(allocated)
    ]
    node = found.nodes[0].model_copy(update={"devices": devices})

    assert free_text(found.model_copy(update={"nodes": [node]})) == text
