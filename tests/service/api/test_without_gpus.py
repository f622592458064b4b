"""Jobs without a GPU above the machine's limit: the API says that they wait, and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.simulated import SimulatedCluster
from runai.hub_service.clusters.workloads.cpu_job_queue import CpuJobQueue
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.explanation_schemas import PlanQuestion
from runai.hub_service.wire.schemas import SubmitRequest
from waiting import eventually_async

FULL = (
    "ana runs 2 of at most 2 workers without a GPU (2 for the only core);"
    " the next starts when one ends"
)


@pytest.fixture
async def ana(platform_on) -> AsyncIterator[object]:
    """Return ana's client; each user may run two workers without a GPU."""
    devices = SimulatedDevices(5, node="lab").devices()
    cluster = SimulatedCluster({"lab": devices}, clock=time.time)
    cluster.cpu_jobs = CpuJobQueue(1)
    async with platform_on(cluster) as served:
        yield await served.client("ana")


MANY = 34
"""Jobs of an array: more than a submission waits for one by one."""


def wish(name: str, **fields: object) -> SubmitRequest:
    told: dict[str, object] = {"name": name, "project": "vision", "command": ["true"], "gpus": 0}
    return SubmitRequest.model_validate(told | fields)


def waiting(workloads) -> dict[str, tuple[int | None, str]]:
    return {w.name: (w.reason.position, w.reason.text) for w in workloads if w.reason}


@pytest.mark.parametrize("many", [pytest.param(5, id="few"), pytest.param(MANY, id="many")])
async def test_submission_and_its_dry_run_say_which_jobs_of_an_array_wait(ana, many):
    tried = await ana.submit(wish("exp", array=many), dry_run=True)

    assert await ana.workloads() == []
    # The array is one line of the queue.
    assert waiting(tried.workloads) == {f"exp-{n}": (1, FULL) for n in range(2, many)}
    assert [note for note in tried.notes if "waits" in note] == [
        f"{next(w.name for w in tried.workloads if w.reason)} waits: {FULL}"
    ]

    reply = await ana.submit(wish("exp", array=many))
    assert waiting(reply.workloads) == waiting(tried.workloads)
    states = Counter({w.state: w.size for w in await ana.workloads() if w.left})
    assert states + Counter(w.state for w in await ana.workloads() if not w.left) == {
        "running": 2,
        "queued": many - 2,
    }


async def test_array_of_which_none_starts_is_answered_with_why_it_waits(ana):
    await ana.submit(wish("first", array=2))

    reply = await ana.submit(wish("exp", array=MANY))

    assert {text for _, text in waiting(reply.workloads).values()} == {FULL}
    assert len(waiting(reply.workloads)) == MANY


async def test_dry_run_counts_what_waits_already(ana):
    await ana.submit(wish("first"))
    await ana.submit(wish("gang", workers=2))

    tried = await ana.submit(wish("small"), dry_run=True)

    older = FULL.replace("runs 2", "runs 1").replace(
        "the next starts when one ends", "an older one that needs more is next"
    )
    assert waiting(tried.workloads) == {"small": (2, older)}


async def test_place_is_behind_what_waits_for_a_gpu_in_its_project(ana):
    await ana.submit(wish("big", gpus=4))
    await ana.submit(wish("exp", array=3))

    await ana.submit(wish("later", gpus=4))

    places = {w.name: w.reason.position for w in await ana.workloads() if w.reason}
    assert places == {"later": 1, "exp": 2}


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda ana, gang: ana.submit(gang), id="submission"),
        pytest.param(lambda ana, gang: ana.submit(gang, dry_run=True), id="dry run"),
        pytest.param(lambda ana, gang: ana.what_if(PlanQuestion(add=(gang,))), id="what if"),
    ],
)
async def test_gang_above_the_bound_is_refused_with_the_way_out(ana, ask):
    with pytest.raises(InvalidRequest) as refused:
        await ask(ana, wish("gang", workers=3))

    assert refused.value.code == "too_many_workers"
    assert refused.value.message == (
        "3 workers without a GPU cannot run at once: one user may run 2 on this machine"
        " (2 for the only core)."
    )
    assert "--array" in refused.value.hint
    assert await ana.workloads() == []


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"workers": 3, "min_workers": 2}, id="that starts with fewer"),
        pytest.param({"workers": 3, "gpus": 1}, id="with a GPU each"),
        pytest.param({"workers": 3, "gpus": 0, "gpu_memory_mib": 100}, id="with GPU memory each"),
    ],
)
async def test_job_that_fits_the_bound_is_not_refused(ana, fields):
    reply = await ana.submit(wish("exp", **fields))

    assert waiting(reply.workloads) == {}


async def test_explanation_has_the_reason_of_a_job_that_the_scheduler_is_not_shown(ana):
    await ana.submit(wish("exp", array=3))

    told = await ana.explanation("vision/exp-2")

    assert (told.reason.text, told.reason.position) == (FULL, 1)
    assert (told.expected_start, told.counterfactuals) == (None, ())


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        pytest.param(
            PlanQuestion(end=("vision/exp-0",)),
            {"vision/exp-0": ("runs", "gone"), "vision/exp-2": ("waits", "starts")},
            id="if one had ended the next would start",
        ),
        pytest.param(
            PlanQuestion(end=("vision/exp-2",)),
            {"vision/exp-2": ("waits", "gone")},
            id="if one that waits had gone",
        ),
        pytest.param(
            PlanQuestion(add=(wish("new", array=2),)),
            {"vision/new-0": (None, "waits"), "vision/new-1": (None, "waits")},
            id="what is added would wait",
        ),
    ],
)
async def test_predicted_plan_respects_limit_of_jobs_without_gpus(ana, question, expected):
    await ana.submit(wish("exp", array=4))

    async def effects() -> dict[str, tuple[str | None, str | None]]:
        answer = await ana.what_if(question)
        return {e.workload: (e.before, e.after) for e in answer.effects}

    async def is_as_expected() -> bool:  # after a cycle that sees the first jobs run
        return bool(await effects() == expected)

    await eventually_async(is_as_expected)
    assert await effects() == expected
