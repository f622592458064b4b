"""What a start says reaches every browser, from the beginning."""

from __future__ import annotations

import asyncio

from runai.spawner.progress import Progress


async def test_each_listener_hears_everything():
    progress = Progress()
    progress.say("one")
    early = asyncio.create_task(collect(progress))
    await asyncio.sleep(0)
    progress.say("two")
    late = asyncio.create_task(collect(progress))
    progress.close()

    assert [await early, await late] == [["one", "two"], ["one", "two"]]


async def test_a_sentence_is_said_again_only_after_another():
    progress = Progress()
    for sentence in ("waits", "waits", "service away", "waits"):
        progress.say(sentence)
    progress.close()

    assert await collect(progress) == ["waits", "service away", "waits"]


async def test_the_bar_never_arrives_before_the_server():
    progress = Progress()
    for number in range(100):
        progress.say(str(number))
    progress.close()
    bar = [event["progress"] async for event in progress.events()]

    assert bar == sorted(bar)
    assert bar[-1] < 100


async def collect(progress: Progress) -> list[str]:
    return [event["message"] async for event in progress.events()]
