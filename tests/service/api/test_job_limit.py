"""The operator's limit on a user's unfinished jobs: a submission above it is refused.

An array of any length is one call, so a limit on calls bounds no jobs.
"""

from __future__ import annotations

import asyncio
import re

import pytest

from runai.hub_service.api.middleware.job_limit import JobLimit
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.wire.errors import Conflict
from runai.hub_service.wire.workload_request import SubmitRequest

MAX_JOBS = 10


def job_request(array: int = 1, **fields: object) -> SubmitRequest:
    defaults: dict[str, object] = {"gpus": 1, "command": ["train"]}
    return SubmitRequest(**defaults | ({"array": array} if array > 1 else {}) | fields)


@pytest.fixture
def limited_service(simulated, monkeypatch):
    """Serve the API with a limit of ten unfinished jobs for each user."""
    monkeypatch.setattr(simulated.platform, "job_limit", JobLimit(MAX_JOBS))
    return simulated


async def stored_jobs(served) -> int:
    return sum(record.size for record in await served.platform.cluster.workloads())


async def test_submission_beyond_job_limit_is_refused_whole_with_a_hint(limited_service):
    ana = await limited_service.client("ana")
    await ana.submit(job_request(MAX_JOBS - 1))

    for dry_run in (True, False):
        with pytest.raises(Conflict) as refused:
            await ana.submit(job_request(2), dry_run=dry_run)
        assert refused.value.code == "too_many_jobs"
        assert refused.value.message == (
            "ana has 9 unfinished jobs and submits 2 more: the limit is 10."
        )
        assert "delete some that wait" in refused.value.hint
    assert await stored_jobs(limited_service) == MAX_JOBS - 1
    await ana.submit(job_request())
    assert await stored_jobs(limited_service) == MAX_JOBS


async def test_job_limit_spares_other_users_and_sessions(limited_service):
    ana, mia = await limited_service.client("ana"), await limited_service.client("mia")
    await ana.submit(job_request(MAX_JOBS))

    await mia.submit(job_request(MAX_JOBS))
    await ana.submit(job_request(kind="session", gpus=0.5, name="lab"))

    assert await stored_jobs(limited_service) == 2 * MAX_JOBS + 1


async def test_session_is_accepted_after_job_limit_drops_below_usage(limited_service, monkeypatch):
    ana = await limited_service.client("ana")
    await ana.submit(job_request(MAX_JOBS))
    monkeypatch.setattr(limited_service.platform, "job_limit", JobLimit(MAX_JOBS - 1))

    await ana.submit(job_request(kind="session", gpus=0.5, name="lab"))

    assert await stored_jobs(limited_service) == MAX_JOBS + 1


async def test_repeated_submission_with_same_idempotency_key_is_accepted_at_job_limit(
    limited_service,
):
    body = {"gpus": 1, "command": ["train"], "array": MAX_JOBS}
    async with limited_service.http("ana", **{"Idempotency-Key": "the-only-one"}) as http:
        first, again = [await http.post("api/v1/workloads", json=body) for _ in range(2)]

    assert (first.status_code, again.status_code) == (201, 201)
    # The answer shows the present state: some jobs run by now, and some start times may be known.
    assert len({tuple(w["id"] for w in reply.json()["workloads"]) for reply in (first, again)}) == 1
    assert await stored_jobs(limited_service) == MAX_JOBS


async def test_deleted_job_does_not_count_towards_the_users_job_limit(limited_service):
    ana = await limited_service.client("ana")
    reply = await ana.submit(job_request(MAX_JOBS))
    await ana.delete(reply.workloads[-1].id)

    await ana.submit(job_request())


async def test_jobs_being_stored_count_towards_the_users_job_limit(limited_service, monkeypatch):
    """Only one of two arrays has room: the second is submitted while the first is being stored."""
    ana = await limited_service.client("ana")
    storing, go_on = asyncio.Event(), asyncio.Event()
    submit = StoredCluster.submit

    async def slow_submit(self, specs, **options):
        storing.set()
        await go_on.wait()
        return await submit(self, specs, **options)

    monkeypatch.setattr(StoredCluster, "submit", slow_submit)
    first = asyncio.create_task(ana.submit(job_request(MAX_JOBS - 1)))
    await storing.wait()

    with pytest.raises(Conflict, match=re.escape("ana has 9 unfinished jobs")):
        await ana.submit(job_request(2))
    go_on.set()
    await first
    assert await stored_jobs(limited_service) == MAX_JOBS - 1


@pytest.mark.parametrize(
    ("max_jobs", "unfinished", "new_jobs", "refused"),
    [
        pytest.param(10, 0, 10, False, id="array up to the limit"),
        pytest.param(10, 0, 11, True, id="array above the limit"),
        pytest.param(10, 10, 1, True, id="at the limit"),
        pytest.param(10, 12, 1, True, id="above a lowered limit"),
        pytest.param(10, 12, 0, False, id="session above the limit"),
        pytest.param(0, 10**6, 10**4, False, id="no limit"),
    ],
)
def test_job_limit_refuses_only_jobs_above_the_maximum(max_jobs, unfinished, new_jobs, refused):
    limit = JobLimit(max_jobs)

    if refused:
        with pytest.raises(Conflict):
            limit.check("ana", new_jobs, unfinished)
    else:
        limit.check("ana", new_jobs, unfinished)


def test_jobs_that_fail_to_be_stored_do_not_count_towards_the_users_job_limit():
    limit = JobLimit(10)

    with pytest.raises(OSError, match="no room"), limit.reserve("ana", 10, 0):
        raise OSError("no room")

    limit.check("ana", 10, 0)
