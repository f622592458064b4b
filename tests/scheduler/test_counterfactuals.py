"""Counterfactuals of a waiting workload: changes that it is offered, and not offered (X)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import job, project, session, snapshot
from runai.hub_service.scheduler import Node, Snapshot, Workload, decide, explain
from runai.hub_service.scheduler.explanations.explain import bounded
from runai.hub_service.scheduler.model.explanation import SetProject


def offered(world: Snapshot, workload: str) -> list[str]:
    """Return the texts of the counterfactuals offered to a waiting workload."""
    wait = explain(world, decide(world), workload)
    assert wait is not None
    assert wait.explanation is not None
    return [counterfactual.text for counterfactual in wait.explanation.counterfactuals]


def gang(*particular: bool) -> Workload:
    """Make a gang of which some workers ask for a GPU type that no node has."""
    plain = job("gang", workers=len(particular))
    workers = [
        replace(worker, gpu_types=("h100",)) if is_particular else worker
        for worker, is_particular in zip(plain.workers, particular, strict=True)
    ]
    return replace(plain, workers=tuple(workers))


@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_a_gang_of_which_any_is_particular_hears_that_it_need_not_be(which: list[bool]) -> None:
    world = snapshot("1x4", [project("a", 4)], [gang(*which)])

    assert "would start if it did not ask for certain nodes" in offered(world, "gang")


def test_counterfactual_to_lend_kept_gpus_sets_never_lent_to_zero() -> None:
    world = snapshot("1x4", [project("a", 4, never_lent=4), project("b")], [job("other", 1, "b")])
    wait = explain(world, decide(world), "other")
    assert wait is not None
    assert wait.explanation is not None

    [told] = wait.explanation.counterfactuals

    assert told.changes == (SetProject(project="a", setting="never_lent", value=0),)


@pytest.mark.parametrize(
    ("devices", "workers", "expected"),
    [(0, 0, 32), (3_125, 0, 32), (3_126, 0, 31), (9_000, 1_000, 10), (90_000, 0, 3)],
)
def test_a_large_cluster_gets_fewer_trials_and_never_less_than_three(
    devices: int, workers: int, expected: int
) -> None:
    there = [job("gang", workers=workers)] if workers else []
    world = snapshot([Node(name="n1", devices=devices)], [project("a", 1)], there)

    assert bounded(world, 32) == expected


def test_a_job_that_is_over_a_limit_hears_nothing_of_the_build_quota() -> None:
    # The whole build quota is in use, but a preemptible job never counts against it (Q1).
    workloads = [session("lab", 1, on="n1:0"), job("train", 1)]
    world = snapshot("1x4", [project("a", 1, limit=1)], workloads)
    wait = explain(world, decide(world), "train")
    assert wait is not None
    assert wait.explanation is not None

    caps = [
        counterfactual.changes
        for counterfactual in wait.explanation.counterfactuals
        if any(isinstance(change, SetProject) for change in counterfactual.changes)
    ]

    assert caps == [(SetProject(project="a", setting="limit", value=2000),)]
