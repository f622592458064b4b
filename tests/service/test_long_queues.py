"""Long queues: an overview lists one's own and the first of others, and counts the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from pydantic import TypeAdapter

from runai.hub_service.api.long_lists import AT_A_TIME, sent_in_pieces
from runai.hub_service.api.overview_views import SHOWN_OWN, SHOWN_WAITING
from runai.hub_service.api.schemas import SubmitRequest

MORE = 30


async def test_an_overview_lists_the_first_of_a_long_queue_and_counts_the_rest(simulated):
    ana, mia = [await simulated.client(name) for name in ("ana", "mia")]
    many = SHOWN_WAITING + MORE
    wish = SubmitRequest(name="exp", gpus=1, command=["train"], array=many)
    await ana.submit(wish)
    await mia.submit(SubmitRequest(name="last", gpus=1, command=["train"]))

    seen = await mia.overview()

    waits = [w for w in seen.workloads if w.state == "queued"]
    assert len(waits) == SHOWN_WAITING
    assert waits[-1].name == "last"
    (project,) = [p for p in seen.projects if p.name == "vision"]
    assert seen.waiting_left_out == project.waiting - SHOWN_WAITING > 0
    assert any(note.startswith(f"{seen.waiting_left_out} more wait") for note in seen.notes)
    assert len(await mia.workloads()) == many + 1


async def test_ones_own_are_listed_beyond_that(simulated):
    ana = await simulated.client("ana")
    wish = SubmitRequest(name="exp", gpus=1, command=["train"], array=SHOWN_WAITING + MORE)
    await ana.submit(wish)

    seen = await ana.overview()

    assert SHOWN_OWN > SHOWN_WAITING + MORE
    assert (len(seen.workloads), seen.waiting_left_out) == (SHOWN_WAITING + MORE, 0)


async def test_who_sees_nothing_of_a_project_is_told_of_none_of_its_queue(simulated):
    ana, out = [await simulated.client(name) for name in ("ana", "out")]
    wish = SubmitRequest(name="exp", gpus=1, command=["train"], array=SHOWN_WAITING + MORE)
    await ana.submit(wish)

    seen = await out.overview()

    assert (seen.workloads, seen.waiting_left_out, seen.notes) == ([], 0, [])


@pytest.mark.parametrize(
    ("many", "who", "told"),
    [
        pytest.param(AT_A_TIME, "mia", AT_A_TIME, id="one piece"),
        pytest.param(AT_A_TIME + 1, "mia", AT_A_TIME + 1, id="one more"),
        pytest.param(3 * AT_A_TIME, "mia", 3 * AT_A_TIME, id="pieces"),
        pytest.param(3 * AT_A_TIME, "out", 0, id="nothing of them"),
    ],
)
async def test_a_long_list_is_whole(simulated, many, who, told):
    ana, reader = [await simulated.client(name) for name in ("ana", who)]
    wish = SubmitRequest(name="exp", gpus=1, command=["train"], array=many)
    stored = [w.id for w in (await ana.submit(wish)).workloads]

    seen = await reader.workloads()

    assert [w.id for w in seen] == stored[:told]


@pytest.mark.parametrize("many", [AT_A_TIME, AT_A_TIME + 1], ids=["in one piece", "in pieces"])
@pytest.mark.parametrize("dry_run", [False, True], ids=["stored", "tried"])
async def test_the_answer_to_an_array_is_whole(simulated, many, dry_run):
    ana = await simulated.client("ana")
    wish = SubmitRequest(name="exp", gpus=1, command=["train"], array=many)

    told = await ana.submit(wish, dry_run=dry_run)

    assert [w.name for w in told.workloads] == [f"exp-{index}" for index in range(many)]
    assert told.dry_run == dry_run
    assert all(" waits: " in note for note in told.notes)
    assert len(told.notes) > 0


async def test_nobody_waits_for_more_than_a_piece_of_a_long_list():
    turns = list[str]()

    def draw(items: Sequence[int]) -> list[int]:
        turns.append(f"{len(items)} drawn")
        return list(items)

    async def others() -> None:
        while True:
            turns.append("others")
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    answer = sent_in_pieces(range(2 * AT_A_TIME + 1), draw, TypeAdapter(list[int]))
    pieces = [piece async for piece in answer.body_iterator]
    beside.cancel()

    assert json.loads(b"".join(p for p in pieces if isinstance(p, bytes))) == list(
        range(2 * AT_A_TIME + 1)
    )
    drawn = [n for n, turn in enumerate(turns) if turn != "others"]
    assert [turns[n] for n in drawn] == [f"{AT_A_TIME} drawn"] * 2 + ["1 drawn"]
    assert all("others" in turns[a:b] for a, b in pairwise(drawn))
