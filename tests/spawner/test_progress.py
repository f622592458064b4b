"""Progress messages of a start reach every browser, from the beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runai.spawner.kubernetes import RunaiKubeSpawner
from runai.spawner.local import RunaiLocalSpawner
from runai.spawner.start_progress import StartProgress, merged


async def test_spawn_progress_sends_all_messages_to_early_and_late_listeners():
    progress = StartProgress()
    progress.append("one")
    early = asyncio.create_task(collect(progress))
    await asyncio.sleep(0)
    progress.append("two")
    late = asyncio.create_task(collect(progress))
    progress.close()

    assert [await early, await late] == [["one", "two"], ["one", "two"]]


async def test_spawn_progress_drops_a_message_equal_to_the_previous_message():
    progress = StartProgress()
    for sentence in ("waits", "waits", "service away", "waits"):
        progress.append(sentence)
    progress.close()

    assert await collect(progress) == ["waits", "service away", "waits"]


async def test_spawn_progress_bar_rises_and_never_reaches_100():
    progress = StartProgress()
    for number in range(100):
        progress.append(str(number))
    progress.close()
    bar = [event["progress"] async for event in progress.events()]

    assert bar == sorted(bar)
    assert bar[-1] < 100


async def collect(progress: StartProgress) -> list[str]:
    return [event["message"] async for event in progress.events()]


async def event_stream(*events: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        yield event


async def test_merged_spawn_events_are_in_order_and_the_progress_bar_never_falls():
    progress = StartProgress()
    events: list[dict[str, Any]] = []
    pull_events = event_stream({"progress": 30, "message": "Pulling"}, {"message": "Pulled"})
    async for event in merged(pull_events, progress.events()):
        events.append(event)
        if event["message"] == "Pulled":
            progress.append("Starting")
            progress.close()

    assert events == [
        {"progress": 30, "message": "Pulling"},
        {"message": "Pulled"},
        {"progress": 30, "message": "Starting"},
    ]


async def test_failing_event_source_fails_the_merged_spawn_events_without_open_tasks():
    progress = StartProgress()

    async def fail_after_close() -> AsyncIterator[dict[str, Any]]:
        progress.close()
        if progress.is_over:
            raise ValueError("no watch")
        yield {}

    with pytest.raises(ValueError, match="no watch"):
        [event async for event in merged(progress.events(), fail_after_close())]
    assert len(asyncio.all_tasks()) == 1


READY_EVENT = {"progress": 100, "ready": True, "message": "Server ready at /user/bob/"}
STOPPED_EVENT = {"progress": 100, "failed": True, "message": "The start was stopped."}


@pytest.mark.parametrize("kind", [RunaiLocalSpawner, RunaiKubeSpawner])
async def test_stopped_server_start_ends_its_spawn_progress_with_a_failure(kind):
    spawner = kind.__new__(kind)  # without a connection to a cluster
    assert (
        spawner.progress_ready_hook(spawner, READY_EVENT) == READY_EVENT
    )  # it was started by another hub

    spawner.is_starting = True

    assert spawner.progress_ready_hook(spawner, READY_EVENT) == STOPPED_EVENT
