"""Answers about other projects where the policy hides the names of other users."""

from __future__ import annotations

import pytest

from runai.hub_service.scheduler import Policy
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async


@pytest.fixture
def name_hiding_platform(simulated):
    """Serve the platform with `name_others: false`."""
    simulated.platform.controller._policy = Policy(name_others=False)
    return simulated


async def test_replies_hide_job_and_user_of_a_foreign_project_that_reclaims_gpus(
    name_hiding_platform,
):
    """Covers lists, explanations, plans, histories, notifications and pages."""
    ana, nel = await name_hiding_platform.client("ana"), await name_hiding_platform.client("nel")
    await ana.submit(SubmitRequest(name="mine", command=["true"], gpus=1, array=4))
    await eventually_async(lambda: _has_allocated(name_hiding_platform, "vision", gpus=4))
    await nel.submit(SubmitRequest(name="unmentionable", command=["true"], gpus=1, array=2))

    async def is_stopped_for_nlp() -> bool:
        return any("nlp" in (w.reason.text if w.reason else "") for w in await ana.workloads())

    await eventually_async(is_stopped_for_nlp, what="a job of ana's is stopped for nlp")
    stopped = next(w for w in await ana.workloads() if w.reason and "nlp" in w.reason.text)
    replies = [
        (await ana.overview()).model_dump_json(),
        (await ana.workload(stopped.id)).model_dump_json(),
        (await ana.explanation(stopped.id)).model_dump_json(),
    ]
    async with name_hiding_platform.http("ana") as http:
        replies += [
            (await http.get(path)).text for path in ("api/v1/plan", "", f"workloads/{stopped.id}")
        ]

    assert "a job of nlp" in replies[1]
    assert [each for each in replies if "unmentionable" in each or '"nel"' in each] == []


async def _has_allocated(name_hiding_platform, project, gpus):
    records = await name_hiding_platform.platform.cluster.workloads()
    return sum(r.allocated for r in records if r.spec.project == project) == 1000 * gpus
