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
from runai.hub_service.wire.workload_request import SubmitRequest

EXTRA_JOBS = 30


async def queue_jobs(simulated: Any, job_count: int) -> None:
    """Queue jobs of ana's, of which some start."""
    await simulated.platform.cluster.submit(
        [
            WorkloadSpec("vision", f"exp-{n}", "ana", "job", ("train",), gpus=MilliGpu(1000))
            for n in range(job_count)
        ]
    )


async def test_overview_lists_the_start_of_a_long_queue_and_counts_the_remainder(simulated):
    mia = await simulated.client("mia")
    job_count = MAX_WAITING + EXTRA_JOBS
    await queue_jobs(simulated, job_count)
    await mia.submit(SubmitRequest(name="last", gpus=1, command=["train"]))

    overview = await mia.overview()

    queued = [w for w in overview.workloads if w.state == "queued"]
    assert len(queued) == MAX_WAITING
    assert queued[-1].name == "last"
    (project,) = [p for p in overview.projects if p.name == "vision"]
    assert overview.waiting_left_out == project.waiting - MAX_WAITING > 0
    assert any(note.startswith(f"{overview.waiting_left_out} more wait") for note in overview.notes)
    assert len(await mia.workloads()) == job_count + 1


async def test_overview_lists_all_own_jobs_of_a_long_queue(simulated):
    ana = await simulated.client("ana")
    await queue_jobs(simulated, MAX_WAITING + EXTRA_JOBS)
    await ana.submit(SubmitRequest(name="z", gpus=1, command=["train"]))

    overview = await ana.overview()

    assert MAX_OWN_WAITING > MAX_WAITING + EXTRA_JOBS
    assert (len(overview.workloads), overview.waiting_left_out) == (MAX_WAITING + EXTRA_JOBS + 1, 0)


async def test_outsider_overview_omits_the_project_queue(simulated):
    ana, outsider = [await simulated.client(name) for name in ("ana", "out")]
    await queue_jobs(simulated, MAX_WAITING + EXTRA_JOBS)
    await ana.submit(SubmitRequest(name="z", gpus=1, command=["train"]))

    overview = await outsider.overview()

    assert (overview.workloads, overview.waiting_left_out, overview.notes) == ([], 0, [])


async def test_workload_list_pages_are_ordered_by_submission_then_array_index(simulated):
    ana, outsider = [await simulated.client(name) for name in ("ana", "out")]
    await queue_jobs(simulated, 12)
    await ana.submit(SubmitRequest(name="b", gpus=1, command=["train"]))

    first = await ana.workload_page(WorkloadFilter(), limit=11)
    second = await ana.workload_page(WorkloadFilter(), first.next_token, limit=11)

    assert [w.name for w in first.items] == [f"exp-{n}" for n in range(11)]
    assert [w.name for w in second.items] == ["exp-11", "b"]
    assert (first.next_token is None, second.next_token) == (False, None)
    assert sum(first.counts.values()) == sum(second.counts.values()) == 13
    assert (await outsider.workload_page(WorkloadFilter())).counts == {}


async def test_next_workload_list_page_repeats_no_workload_after_a_deletion(simulated):
    ana = await simulated.client("ana")
    await queue_jobs(simulated, 4)
    first = await ana.workload_page(WorkloadFilter(), limit=2)
    await ana.delete("vision/exp-1")

    second = await ana.workload_page(WorkloadFilter(), first.next_token)

    assert [w.name for w in second.items] == ["exp-2", "exp-3"]


async def test_client_reads_all_pages_of_a_long_workload_list(simulated, monkeypatch):
    monkeypatch.setattr(client, "NEXT_PAGES", 4)
    ana = await simulated.client("ana")
    await queue_jobs(simulated, 10)

    assert [w.id for w in await ana.workloads()] == [f"vision/exp-{n}" for n in range(10)]


@pytest.mark.parametrize("token", ["exp", "one:vision/exp-1"])
async def test_workload_list_with_an_unknown_page_token_is_refused(simulated, token):
    ana = await simulated.client("ana")

    with pytest.raises(InvalidRequest, match=f"continue is {token}, which is no place in a list"):
        await ana.workload_page(WorkloadFilter(), token)


@pytest.mark.parametrize("dry_run", [False, True], ids=["submission", "dry run"])
async def test_array_submission_reply_names_all_workloads_and_details_the_first(simulated, dry_run):
    ana = await simulated.client("ana")
    job_count = MAX_LISTED_ELEMENTS + 1
    request = SubmitRequest(name="exp", gpus=1, command=["train"], array=job_count)

    reply = await ana.submit(request, dry_run=dry_run)

    assert [w.name for w in reply.workloads] == [
        f"exp-{index}" for index in range(MAX_LISTED_ELEMENTS)
    ]
    assert (reply.array, reply.count, reply.dry_run) == ("vision/exp", job_count, dry_run)
    assert reply.ids() == [f"vision/exp-{index}" for index in range(job_count)]
    assert all(" waits: " in note for note in reply.notes)
    assert len(reply.notes) > 0
