"""Explanations: counterfactuals, expected start, workloads ahead, device holders (X)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from builders import job, project, session, snapshot
from plan_effects import PlanEffects
from runai.hub_service.scheduler import (
    ClusterIndex,
    Explanation,
    Plan,
    Snapshot,
    Wait,
    changed,
    decide,
    explain,
)
from runai.hub_service.scheduler.explanations.explain import explain_with
from strategies import snapshots

YOUNG_JOBS = [job(f"young-{i}", on=f"n1:{i}", started=640 + i) for i in range(4)]
HALF_GPU_JOBS = [job(f"half-{i}", 0.5, on=f"n1:{i}", started=900 + i) for i in range(4)]
VISION_2_LIMIT_3 = [project("vision", 2, limit=3)]

EXPLANATIONS = {
    "build quota": (
        snapshot(
            "1x4",
            VISION_2_LIMIT_3,
            [
                session("ana-1", 1, "vision", on="n1:0"),
                session("bo-1", 1, "vision", on="n1:1", started=500),
                session("cy-1", 1, "vision"),
            ],
        ),
        "cy-1",
        "over_build_quota",
        [
            "would start if the session of bo ended",
            "would start if vision's quota were 3 GPUs instead of 2",
            "would start if it were preemptible (and may then be stopped at any time)",
        ],
        (
            "expected to start in 9 minutes"
            " (run times are estimated: between 3 minutes and 25 minutes)"
        ),
    ),
    "project limit": (
        snapshot(
            "1x4",
            VISION_2_LIMIT_3,
            [
                job("exp-1", 2, "vision", on="n1:0,1", started=940, expected_runtime=70),
                job("exp-2", 2, "vision"),
            ],
        ),
        "exp-2",
        "over_limit",
        [
            "would start if exp-1 ended",
            "would start with 1 GPU instead of 2",
            "would start if vision's limit were 4 GPUs instead of 3",
        ],
        "expected to start in 10 seconds",
    ),
    "more GPUs than a node has": (
        snapshot("1x4", [project("a", 8)], [job("huge", 8)]),
        "huge",
        "no_such_node",
        ["would start with 4 GPUs instead of 8"],
        "start unknown: no running job with a known end frees enough GPUs",
    ),
    "gang larger than the cluster": (
        snapshot("1x4", [project("a", 8)], [job("crowd", workers=5)]),
        "crowd",
        "no_such_node",
        ["would start with 4 workers instead of 5"],
        "start unknown: no running job with a known end frees enough GPUs",
    ),
    "GPU type that no node has": (
        snapshot("1x4", [project("a", 8)], [job("picky", gpu_types=("h100",))]),
        "picky",
        "no_such_node",
        ["would start if it did not ask for certain nodes"],
        "start unknown: no running job with a known end frees enough GPUs",
    ),
    "unknown project": (
        snapshot("1x4", [project("a", 8)], [job("lost", 1, "missing")]),
        "lost",
        "unknown_project",
        [],
        "start unknown: no running job with a known end frees enough GPUs",
    ),
    "job ahead in the queue": (
        snapshot("1x4", [project("a", 4)], [job("first", 4, expected_runtime=600), job("late", 1)]),
        "late",
        "behind",
        ["would start if first were not there", "would start with priority 75 instead of 50"],
        "expected to start in 10 minutes",
    ),
    "project at its share": (
        snapshot(
            "1x4",
            [project("a", 3), project("b", 1)],
            [
                job("rich", 3, on="n1:0,1,2"),
                job("own", 1, "b", on="n1:3", started=0, priority=75),
                job("poor", 1, "b"),
            ],
        ),
        "poor",
        "over_share",
        ["would start if own ended"],
        (
            "expected to start in 17 minutes"
            " (run times are estimated: between 6 minutes and 50 minutes)"
        ),
    ),
    "project at its share beside sessions": (
        snapshot(
            "1x4",
            [project("a", 3), project("b", 1)],
            [
                session("ro-1", 2, on="n1:0,1"),
                session("ed-1", 1, "b", on="n1:2"),
                job("old", 1, on="n1:3", started=990),
                job("poor", 1, "b"),
            ],
        ),
        "poor",
        "over_share",
        ["would start if old ended"],
        (
            "expected to start in 60 seconds"
            " (run times are estimated: between 20 seconds and 3 minutes)"
        ),
    ),
    "fragments": (
        snapshot("1x4", [project("a", 2)], [*HALF_GPU_JOBS, job("spread", 1)]),
        "spread",
        "fragmented",
        [
            "would start if running jobs could be moved together (policy phase consolidate)",
            "would start if half-3 ended",
            "would start with 0.5 GPUs instead of 1",
        ],
        (
            "expected to start in 97 seconds"
            " (run times are estimated: between 32 seconds and 5 minutes)"
        ),
    ),
    "incomplete gang": (
        snapshot(
            "1x4",
            [project("a", 2)],
            [
                job("h-0", 0.5, on="n1:0", priority=80),
                job("h-1", 0.5, on="n1:1", started=300, expected_runtime=900, priority=80),
                job("w-2", on="n1:2", priority=80),
                job("gang", workers=2, priority=80),
            ],
        ),
        "gang",
        "gang_incomplete",
        [
            "would start if h-1 ended",
            "would start if a's quota were 4 GPUs instead of 2",
            "would start with 1 worker instead of 2",
        ],
        "expected to start in 4 minutes",
    ),
    "minimum run time": (
        snapshot(
            "1x4",
            [project("a", 2, min_runtime=600), project("b", 4)],
            [*YOUNG_JOBS, job("eager", 1, "b")],
        ),
        "eager",
        "protected",
        [
            (
                "would start if a gave back 1 of the 2 GPUs it holds over its share;"
                " protected for 4 more minutes"
            )
        ],
        (
            "expected to start in 4 minutes"
            " (run times are estimated: between 119 seconds and 4 minutes)"
        ),
    ),
    "never-lent GPUs": (
        snapshot("1x4", [project("a", 4, never_lent=4), project("b", 0)], [job("other", 1, "b")]),
        "other",
        "held_for",
        ["would start if a lent the 4 GPUs it never lends"],
        "start unknown: no running job with a known end frees enough GPUs",
    ),
    "GPUs held for an older gang": (
        snapshot(
            "2x2",
            [project("a", 8)],
            [
                job("soon", on="n1:0", started=0, max_runtime=1700),
                job("later", on="n2:0", started=0, max_runtime=1900),
                job("filler", on="n2:1", started=0, max_runtime=1900),
                job("gang", 2),
                job("late", submitted=20),
            ],
            backfill=True,
        ),
        "late",
        "held_for",
        ["would start now with a limit of 10 minutes in time (--time)"],
        (
            "expected to start in 15 minutes"
            " (run times are estimated: between 6 minutes and 15 minutes)"
        ),
    ),
    "reservation": (
        snapshot(
            "1x2",
            [project("eve", 1), project("vision", 1)],
            [
                job("exp-6", project="eve", on="n1:0"),
                job("exp-7", project="eve", on="n1:1"),
                session("ana-1", 1, "vision"),
            ],
        ),
        "ana-1",
        "stopping",
        ["would start if exp-7 had gone"],
        "starts as soon as the jobs that make room for it have stopped",
    ),
}


def explained_wait(snapshot: Snapshot, workload: str) -> tuple[Wait, Explanation]:
    wait = explain(snapshot, decide(snapshot), workload)
    assert wait is not None
    assert wait.explanation is not None
    return wait, wait.explanation


@pytest.mark.parametrize(
    ("snapshot", "workload", "code", "counterfactuals", "start"),
    EXPLANATIONS.values(),
    ids=EXPLANATIONS,
)
def test_explained_wait_has_its_reason_counterfactuals_and_expected_start(
    snapshot, workload, code, counterfactuals, start
) -> None:
    wait, explanation = explained_wait(snapshot, workload)

    assert wait.reason.code == code
    assert [c.text for c in explanation.counterfactuals][: len(counterfactuals)] == counterfactuals
    assert bool(explanation.counterfactuals) == bool(counterfactuals)
    assert explanation.expected_start.text == start


def test_counterfactual_reports_when_the_protection_of_a_victim_ends() -> None:
    snapshot, workload, *_ = EXPLANATIONS["minimum run time"]

    _, explanation = explained_wait(snapshot, workload)

    # The oldest job started at 640, and min_runtime is 600 s.
    assert explanation.counterfactuals[0].protected_until == 640 + 600


def test_counterfactual_returns_as_few_gpus_as_possible() -> None:
    cluster_snapshot = snapshot(
        "2x2",
        [project("a", 0, min_runtime=600), project("b", 4)],
        [
            job("helps", on="n1:0", started=900),
            job("useless-1", on="n2:0", started=890),
            job("useless-2", on="n2:1", started=880),
            job("pair", 2, "b"),
        ],
    )

    _, explanation = explained_wait(cluster_snapshot, "pair")

    assert explanation.counterfactuals[0].text == (
        "would start if a gave back 1 of the 3 GPUs it holds over its share;"
        " protected for 9 more minutes"
    )


def test_counterfactual_names_up_to_four_workloads_to_remove() -> None:
    def counterfactual_text(count: int) -> str:
        old = [job(f"old-{i}", on=f"n1:{i}") for i in range(count)]
        cluster_snapshot = snapshot(
            "1x8", [project("a", 0), project("b", 8)], [*old, job("new", 8, "b")]
        )
        _, explanation = explained_wait(cluster_snapshot, "new")
        return explanation.counterfactuals[0].text

    assert counterfactual_text(1) == "would start if old-0 had gone"
    assert counterfactual_text(2) == "would start if old-0 and old-1 had gone"
    assert counterfactual_text(4) == "would start if old-0, old-1, old-2 and old-3 had gone"
    assert counterfactual_text(6) == "would start if old-0, old-1, old-2, old-3 and 2 more had gone"


def test_explanation_at_exact_quota_states_gpus_of_a_project_over_its_share() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("a", 1, min_runtime=600), project("b", 1)],
        [*[job(f"r-{i}", on=f"n1:{i}", started=900) for i in range(4)], job("mine", 1, "b")],
    )

    _, explanation = explained_wait(cluster_snapshot, "mine")

    assert explanation.counterfactuals[0].text.startswith(
        "would start if a gave back 1 of the 3 GPUs it holds over its share"
    )


def test_explanation_counts_the_current_gpus_of_a_resized_job() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("a", 4)],
        [
            job("elastic", 2, on="n1:0,1,2", gpus_min=1000, gpus_max=4000, started=900),
            session("ro-1", 1, on="n1:3"),
            job("next", 4, priority=25),
        ],
    )

    _, explanation = explained_wait(cluster_snapshot, "next")

    assert {h.workload: h.gpus for h in explanation.holders} == {"elastic": 3000, "ro-1": 1000}


def test_explanation_lists_the_workloads_ahead_and_the_holders_of_gpus() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("a", 3), project("b", 1)],
        [
            job("long", 2, on="n1:0,1", started=800, user="ana"),
            job("short", 1, on="n1:2", started=900, expected_runtime=150),
            session("ed-1", 1, "b", on="n1:3"),
            job("next", 1),
            job("mine", 1),
            job("elsewhere", 1, "b"),
        ],
    )

    wait, explanation = explained_wait(cluster_snapshot, "mine")

    assert wait.position == 2
    assert explanation.ahead == ("next",)
    assert [(h.workload, h.user, h.gpus, h.until) for h in explanation.holders] == [
        ("long", "ana", 2000, 1200),
        ("ed-1", "ed", 1000, None),
        ("short", "", 1000, 1050),
    ]


def test_explanation_names_only_workloads_that_the_reader_may_see() -> None:
    snapshot, workload, *_ = EXPLANATIONS["build quota"]

    wait = explain(snapshot, decide(snapshot), workload, lambda w: w.user == "cy")

    assert wait is not None
    assert wait.explanation is not None
    assert wait.explanation.counterfactuals[0].text == "would start if a session of vision ended"
    assert {(h.workload, h.user, h.project) for h in wait.explanation.holders} == {
        ("", "", "vision")
    }


def test_running_or_unknown_workload_has_no_explanation() -> None:
    cluster_snapshot = snapshot("1x1", [project("a", 1)], [job("runs", on="n1:0")])

    assert explain(cluster_snapshot, decide(cluster_snapshot), "runs") is None
    assert explain(cluster_snapshot, decide(cluster_snapshot), "unknown") is None


def test_explain_policy_full_puts_an_explanation_on_every_wait() -> None:
    snapshot, workload, *_ = EXPLANATIONS["minimum run time"]
    full = replace(snapshot, policy=replace(snapshot.policy, explain="full"))

    waits = [d for d in decide(full).decisions if isinstance(d, Wait)]

    assert waits == [explain(snapshot, decide(snapshot), workload)]


def test_explanation_simulates_a_bounded_number_of_cycles() -> None:
    cluster_snapshot = snapshot(
        "50x8",
        [project("a", 0), project("b", 400)],
        [
            *[
                job(f"r{n}-{d}", on=f"n{n}:{d}", started=100 + n + d)
                for n in range(1, 51)
                for d in range(8)
            ],
            *[job(f"p{i}", 1, "b", priority=0) for i in range(20)],
            session("big-1", 8, "a"),
        ],
        phases=("allocate",),
    )
    planned_snapshots = []

    def counting_decide(snap: Snapshot | ClusterIndex) -> Plan:
        planned_snapshots.append(snap)
        return decide(snap)

    wait = explain_with(counting_decide, cluster_snapshot, decide(cluster_snapshot), "p7")

    assert wait is not None
    # At most 32 trials, and three forecasts of 200 cycles.
    assert len(planned_snapshots) <= 32 + 3 * 200


# ---- explanations are true


@given(snapshots(max_workloads=6))
def test_counterfactual_lets_the_workload_start_when_applied_to_the_snapshot(
    snapshot: Snapshot,
) -> None:
    plan = decide(snapshot)
    for wait in [decision for decision in plan.decisions if isinstance(decision, Wait)]:
        _, explanation = explained_wait(snapshot, wait.workload)
        for counterfactual in explanation.counterfactuals:
            changed_snapshot = changed(snapshot, counterfactual.changes)
            workload = next(w for w in changed_snapshot.workloads if w.name == wait.workload)

            assert (
                PlanEffects(changed_snapshot, decide(changed_snapshot)).active_after(workload)
                >= workload.minimum
            )
