"""Event streams: one rendering per user, however many streams, and only while they are read."""

from __future__ import annotations

import asyncio
import json

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.model.records import ProjectSpec
from waiting import eventually_async

ANA, MIA = Actor("ana"), Actor("mia")


def overview(event: bytes):
    return json.loads(event.removeprefix(b"event: overview\ndata: "))


async def test_event_streams_of_one_user_share_an_overview_rendering(simulated):
    feeds = simulated.platform.feeds
    streams = [feeds.follow(lambda: ANA) for _ in range(50)]

    first = await asyncio.gather(*(anext(stream) for stream in streams))

    assert len({id(event) for event in first}) == 1
    assert feeds.render_count < 10
    for stream in streams:
        await stream.aclose()


async def test_overview_feed_is_removed_when_its_last_reader_leaves(simulated):
    feeds = simulated.platform.feeds
    stream = feeds.follow(lambda: ANA)
    await anext(stream)

    await stream.aclose()

    assert feeds._feeds == {}


async def test_overview_stream_shows_the_submit_rights_of_its_reader(simulated):
    feeds = simulated.platform.feeds
    outsider, ana = feeds.follow(lambda: Actor("out")), feeds.follow(lambda: ANA)

    def may_submit(event: bytes) -> set[str]:
        return {p["name"] for p in overview(event)["projects"] if p["may_submit"]}

    assert may_submit(await anext(outsider)) == set()
    assert may_submit(await anext(ana)) == {"vision"}
    for stream in (outsider, ana):
        await stream.aclose()


async def test_new_project_reaches_every_open_overview_stream(simulated):
    feeds = simulated.platform.feeds
    streams = [feeds.follow(lambda actor=actor: actor) for actor in (ANA, ANA, MIA)]
    await asyncio.gather(*(anext(stream) for stream in streams))

    await simulated.platform.cluster.put_project(ProjectSpec("chemistry"))

    async def wait_for_project(stream) -> None:
        async for event in stream:
            if "chemistry" in {p["name"] for p in overview(event)["projects"]}:
                return

    async with asyncio.timeout(60):
        await asyncio.gather(*map(wait_for_project, streams))
    for stream in streams:
        await stream.aclose()


async def test_open_overview_stream_applies_changed_rights_of_its_reader(simulated):
    now = [Actor("out")]
    feeds = simulated.platform.feeds
    stream = feeds.follow(lambda: now[0])
    await anext(stream)

    now[0] = Actor("out", admin=True)

    async def is_admin() -> bool:
        return any(p["may_admin"] for p in overview(await anext(stream))["projects"])

    await eventually_async(is_admin)
    await stream.aclose()
