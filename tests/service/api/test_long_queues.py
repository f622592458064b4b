"""Long queues: an overview lists the user's own workloads and the first ones of other users.

It counts the rest.
"""

from __future__ import annotations

from typing import Any

import pytest

from runai.hub_service.api.services.submit import MAX_LISTED_ELEMENTS
from runai.hub_service.api.views.overview_views import MAX_OWN_WAITING, MAX_WAITING
from runai.hub_service.client import client
from runai.hub_service.client.calls import WorkloadFilter
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import SubmitRequest

MORE = 30


async def queued(simulated: Any, many: int) -> None:
    """Queue jobs of ana's, of which some start."""
    await simulated.platform.cluster.submit(
        [
            WorkloadSpec("vision", f"exp-{n}", "ana", "job", ("train",), gpus=MilliGpu(1000))
            for n in range(many)
        ]
    )


async def test_an_overview_lists_the_first_of_a_long_queue_and_counts_the_rest(simulated):
    mia = await simulated.client("mia")
    many = MAX_WAITING + MORE
    await queued(simulated, many)
    await mia.submit(SubmitRequest(name="last", gpus=1, command=["train"]))

    seen = await mia.overview()

    waits = [w for w in seen.workloads if w.state == "queued"]
    assert len(waits) == MAX_WAITING
    assert waits[-1].name == "last"
    (project,) = [p for p in seen.projects if p.name == "vision"]
    assert seen.waiting_left_out == project.waiting - MAX_WAITING > 0
    assert any(note.startswith(f"{seen.waiting_left_out} more wait") for note in seen.notes)
    assert len(await mia.workloads()) == many + 1


async def test_ones_own_are_listed_beyond_that(simulated):
    ana = await simulated.client("ana")
    await queued(simulated, MAX_WAITING + MORE)
    await ana.submit(SubmitRequest(name="z", gpus=1, command=["train"]))

    seen = await ana.overview()

    assert MAX_OWN_WAITING > MAX_WAITING + MORE
    assert (len(seen.workloads), seen.waiting_left_out) == (MAX_WAITING + MORE + 1, 0)


async def test_outsider_overview_omits_the_project_queue(simulated):
    ana, out = [await simulated.client(name) for name in ("ana", "out")]
    await queued(simulated, MAX_WAITING + MORE)
    await ana.submit(SubmitRequest(name="z", gpus=1, command=["train"]))

    seen = await out.overview()

    assert (seen.workloads, seen.waiting_left_out, seen.notes) == ([], 0, [])


async def test_a_list_is_read_page_by_page_in_the_order_of_submission_then_number(simulated):
    ana, out = [await simulated.client(name) for name in ("ana", "out")]
    await queued(simulated, 12)
    await ana.submit(SubmitRequest(name="b", gpus=1, command=["train"]))

    first = await ana.workload_page(WorkloadFilter(), limit=11)
    second = await ana.workload_page(WorkloadFilter(), first.next_token, limit=11)

    assert [w.name for w in first.items] == [f"exp-{n}" for n in range(11)]
    assert [w.name for w in second.items] == ["exp-11", "b"]
    assert (first.next_token is None, second.next_token) == (False, None)
    assert sum(first.counts.values()) == sum(second.counts.values()) == 13
    assert (await out.workload_page(WorkloadFilter())).counts == {}


async def test_next_page_repeats_no_workload_after_a_deletion(simulated):
    ana = await simulated.client("ana")
    await queued(simulated, 4)
    first = await ana.workload_page(WorkloadFilter(), limit=2)
    await ana.delete("vision/exp-1")

    second = await ana.workload_page(WorkloadFilter(), first.next_token)

    assert [w.name for w in second.items] == ["exp-2", "exp-3"]


async def test_all_of_a_long_list_is_read(simulated, monkeypatch):
    monkeypatch.setattr(client, "NEXT_PAGES", 4)
    ana = await simulated.client("ana")
    await queued(simulated, 10)

    assert [w.id for w in await ana.workloads()] == [f"vision/exp-{n}" for n in range(10)]


@pytest.mark.parametrize("token", ["exp", "one:vision/exp-1"])
async def test_a_token_that_no_page_has_given_is_refused_by_name(simulated, token):
    ana = await simulated.client("ana")

    with pytest.raises(InvalidRequest, match=f"continue is {token}, which is no place in a list"):
        await ana.workload_page(WorkloadFilter(), token)


@pytest.mark.parametrize("dry_run", [False, True], ids=["stored", "tried"])
async def test_the_answer_to_an_array_names_all_and_shows_the_first(simulated, dry_run):
    ana = await simulated.client("ana")
    many = MAX_LISTED_ELEMENTS + 1
    wish = SubmitRequest(name="exp", gpus=1, command=["train"], array=many)

    told = await ana.submit(wish, dry_run=dry_run)

    assert [w.name for w in told.workloads] == [
        f"exp-{index}" for index in range(MAX_LISTED_ELEMENTS)
    ]
    assert (told.array, told.count, told.dry_run) == ("vision/exp", many, dry_run)
    assert told.ids() == [f"vision/exp-{index}" for index in range(many)]
    assert all(" waits: " in note for note in told.notes)
    assert len(told.notes) > 0
