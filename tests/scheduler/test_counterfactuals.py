"""Counterfactuals of a waiting workload: changes that it is offered, and not offered (X)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import job, project, session, snapshot
from runai.hub_service.scheduler import Node, Snapshot, Workload, decide, explain
from runai.hub_service.scheduler.explanations.explain import bounded
from runai.hub_service.scheduler.model.explanation import SetProject


def counterfactual_texts(snapshot: Snapshot, workload: str) -> list[str]:
    """Return the texts of the counterfactuals offered to a waiting workload."""
    wait = explain(snapshot, decide(snapshot), workload)
    assert wait is not None
    assert wait.explanation is not None
    return [counterfactual.text for counterfactual in wait.explanation.counterfactuals]


def gang(*requests_missing_type: bool) -> Workload:
    """Make a gang of which some workers ask for a GPU type that no node has."""
    plain = job("gang", workers=len(requests_missing_type))
    workers = [
        replace(worker, gpu_types=("h100",)) if is_missing else worker
        for worker, is_missing in zip(plain.workers, requests_missing_type, strict=True)
    ]
    return replace(plain, workers=tuple(workers))


@pytest.mark.parametrize("requests_missing_type", [(True, True), (True, False), (False, True)])
def test_gang_with_unmet_gpu_type_is_advised_to_drop_node_requirements(
    requests_missing_type: list[bool],
) -> None:
    cluster_snapshot = snapshot("1x4", [project("a", 4)], [gang(*requests_missing_type)])

    assert "would start if it did not ask for certain nodes" in counterfactual_texts(
        cluster_snapshot, "gang"
    )


def test_counterfactual_to_lend_gpus_sets_never_lent_to_zero() -> None:
    cluster_snapshot = snapshot(
        "1x4", [project("a", 4, never_lent=4), project("b")], [job("other", 1, "b")]
    )
    wait = explain(cluster_snapshot, decide(cluster_snapshot), "other")
    assert wait is not None
    assert wait.explanation is not None

    [counterfactual] = wait.explanation.counterfactuals

    assert counterfactual.changes == (SetProject(project="a", setting="never_lent", value=0),)


@pytest.mark.parametrize(
    ("devices", "workers", "expected"),
    # Trials times devices and workers stay within 100,000.
    [(0, 0, 32), (3_125, 0, 32), (3_126, 0, 31), (9_000, 1_000, 10), (90_000, 0, 3)],
)
def test_counterfactual_trials_shrink_with_cluster_size_to_no_less_than_three(
    devices: int, workers: int, expected: int
) -> None:
    existing = [job("gang", workers=workers)] if workers else []
    cluster_snapshot = snapshot([Node(name="n1", devices=devices)], [project("a", 1)], existing)

    assert bounded(cluster_snapshot, 32) == expected


def test_job_over_its_project_limit_is_not_advised_to_change_the_build_quota() -> None:
    # The whole build quota is in use, but a preemptible job never counts against it (Q1).
    workloads = [session("lab", 1, on="n1:0"), job("train", 1)]
    cluster_snapshot = snapshot("1x4", [project("a", 1, limit=1)], workloads)
    wait = explain(cluster_snapshot, decide(cluster_snapshot), "train")
    assert wait is not None
    assert wait.explanation is not None

    caps = [
        counterfactual.changes
        for counterfactual in wait.explanation.counterfactuals
        if any(isinstance(change, SetProject) for change in counterfactual.changes)
    ]

    assert caps == [(SetProject(project="a", setting="limit", value=2000),)]
