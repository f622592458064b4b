"""Scheduler explanations over the API: why a workload waits, until when, and what if."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.errors import InvalidRequest, NotFound
from runai.hub_service.wire.explanation_schemas import PlanQuestion, SettingChange
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async


def job(name: str | None, gpus: str, project: str = "vision", **fields) -> SubmitRequest:
    return SubmitRequest(name=name, project=project, command=["true"], gpus=gpus, **fields)


async def submit_four_one_gpu_jobs(simulated, ana: AsyncClient) -> None:
    for name in ("a", "b", "c", "d"):
        await ana.submit(job(name, "1"))

    def all_are_placed() -> bool:
        workloads = simulated.platform.controller.last.snapshot.workloads
        return sum(worker.node is not None for each in workloads for worker in each.workers) == 4

    await eventually_async(all_are_placed, what="a cycle that knows of all four")


def setting(project: str, name: str, value: object) -> SettingChange:
    return SettingChange(project=project, setting=name, value=value)


def outcomes(answer) -> dict[str, tuple[str | None, str]]:
    return {effect.workload: (effect.before, effect.after) for effect in answer.effects}


@pytest.mark.parametrize(("text", "value"), [("20m", 1200), (" 8H", 28_800), ("90", 90), (0, 0)])
def test_min_runtime_setting_of_a_what_if_question_accepts_durations(text, value):
    assert setting("vision", "min_runtime", text).value == value


@pytest.mark.parametrize(
    ("name", "text"), [("min_runtime", "soon"), ("min_runtime", "1.5h"), ("weight", "20m")]
)
def test_malformed_amount_in_a_what_if_setting_is_refused(name, text):
    with pytest.raises(ValidationError):
        setting("vision", name, text)


async def test_explanation_of_a_waiting_job_has_reason_gpu_holders_and_expected_start(simulated):
    ana = await simulated.client("ana")
    await ana.submit(job("a", "4"))  # the limit of vision
    await ana.submit(job("a2", "1"))

    explanation = await ana.explanation("vision/a2")

    assert (explanation.reason.code, explanation.reason.position) == ("over_limit", 1)
    assert [c.text for c in explanation.counterfactuals] == [
        "would start if vision/a ended",
        "would start if vision's limit were 5 GPUs instead of 4",
    ]
    assert [(h.workload, h.user, h.gpus) for h in explanation.holders] == [("vision/a", "ana", 4)]
    assert explanation.expected_start.is_estimated
    assert (
        explanation.expected_start.earliest
        < explanation.expected_start.at
        < explanation.expected_start.latest
    )


async def test_wait_explanation_hides_jobs_and_users_of_other_projects(simulated):
    ana, nel = await simulated.client("ana"), await simulated.client("nel")
    await ana.submit(job("secret", "4"))
    await nel.submit(job("mine", "2", "nlp"))
    await nel.submit(job("more", "2", "nlp"))

    explanation = await nel.explanation("nlp/more")
    visible_text = explanation.model_dump_json(exclude={"reason"})

    assert [c.text for c in explanation.counterfactuals] == [
        "would start if a job of vision had gone"
    ]
    assert "secret" not in visible_text
    assert "ana" not in visible_text


async def test_admin_what_if_predicts_starts_and_leaves_cluster_unchanged(simulated):
    root = await simulated.client("root")
    ana = await simulated.client("ana")
    await ana.submit(job("a", "4"))  # the limit of vision
    await ana.submit(job("a2", "1"))
    question = PlanQuestion(
        add=[job(None, "2", "nlp")], set=[setting("vision", "limit", "5")], end=["vision/a"]
    )

    answer = await root.what_if(question)

    assert outcomes(answer) == {
        "vision/a": (_state_before(answer, "vision/a"), "gone"),
        "vision/a2": ("waits", "starts"),
        "nlp/job-1": (None, "starts"),
    }
    assert {w.id for w in await root.workloads()} == {"vision/a", "vision/a2"}
    assert (await root.project("vision")).limit == 4


async def test_quota_by_gpu_type_in_what_if_leaves_stored_quota_unchanged(simulated):
    root, ana = await simulated.client("root"), await simulated.client("ana")
    await submit_four_one_gpu_jobs(simulated, ana)
    node = (await root.nodes())[0]
    new = [job("new", "2", "nlp")]
    table = setting("nlp", "quota", {node.devices[0].name: "0", "*": "4"})

    # With its quota of 2.5, nlp reclaims a GPU for the job; with 0 of this type, the job waits.
    before = await root.what_if(PlanQuestion(add=new))
    after = await root.what_if(PlanQuestion(add=new, set=[table]))

    assert [outcomes(answer)["nlp/new"][1] for answer in (before, after)] == [
        "starts later",
        "waits",
    ]
    assert (await root.project("nlp")).quota_by_type is None
    with pytest.raises(NotFound, match="no project none"):
        await root.what_if(PlanQuestion(set=[setting("none", "quota", {"*": "1"})]))


def test_what_if_setting_takes_the_values_of_a_project():
    assert setting("vision", "min_runtime", "2d").value == 172_800
    assert setting("vision", "weight", "200000").value == 200_000


def test_table_by_gpu_type_in_what_if_is_refused_for_settings_except_quota():
    with pytest.raises(ValueError, match="use a number such as"):
        setting("vision", "limit", {"*": "1"})


def _state_before(answer, workload):
    return next(e.before for e in answer.effects if e.workload == workload)


async def test_admin_what_if_names_job_that_a_new_job_would_reclaim(simulated):
    root, ana = await simulated.client("root"), await simulated.client("ana")
    await submit_four_one_gpu_jobs(simulated, ana)

    # One of five GPUs is free; nlp is below its quota of 2.5, vision with 4 GPUs above its own.
    answer = await root.what_if(PlanQuestion(add=[job("new", "2", "nlp")]))

    new = next(e for e in answer.effects if e.is_added)
    assert new.after == "starts later"
    stops = [e for e in answer.effects if e.after == "stops"]
    assert [(e.reason.code, e.reason.gains) for e in stops] == [("reclaimed", "nlp/new")]
    assert {p.name: (p.allocated_before, p.allocated) for p in answer.projects} == {
        "vision": (4, 3),
        "nlp": (0, 2),
    }


async def test_member_what_if_only_counts_affected_jobs_of_other_projects(simulated):
    nel, ana = await simulated.client("nel"), await simulated.client("ana")
    await submit_four_one_gpu_jobs(simulated, ana)

    answer = await nel.what_if(PlanQuestion(add=[job("new", "2", "nlp")]))

    assert [e.workload for e in answer.effects] == ["nlp/new"]
    assert answer.others == {"stops": 1}
    assert "ana" not in answer.model_dump_json()


@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        pytest.param({"add": [job("x", "1", "none")]}, NotFound, "no project none", id="project"),
        pytest.param(
            {"add": [SubmitRequest(command=["true"], gpus="1")]},
            InvalidRequest,
            "names no project",
            id="no project",
        ),
        pytest.param(
            {"set": [setting("none", "quota", "1")]},
            NotFound,
            "no project none",
            id="project of a setting",
        ),
        pytest.param(
            {"set": [setting("vision", "priority", None)]},
            InvalidRequest,
            "vision.priority cannot be None",
            id="setting without a value",
        ),
        pytest.param({"end": ["vision/none"]}, NotFound, "no workload vision/none", id="workload"),
    ],
)
async def test_invalid_what_if_question_is_refused(simulated, question, error, message):
    root = await simulated.client("root")

    with pytest.raises(error, match=message):
        await root.what_if(PlanQuestion(**question))
