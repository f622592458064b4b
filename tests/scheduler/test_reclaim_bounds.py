"""Reclaim bounds: counting rejects only searches that could not succeed (R2, R5, E1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given

import strategies
from builders import job, project, session, snapshot
from runai.hub_service.scheduler import (
    Decision,
    Snapshot,
    Wait,
    WorkerState,
    Workload,
    decide,
)
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of
from runai.hub_service.scheduler.steps.reclaim_bounds import ReclaimBounds
from runai.hub_service.scheduler.steps.victim_iterator import PreemptionScope


def with_claims_for_one_worker(cluster_snapshot: Snapshot) -> Snapshot:
    """Reduce each waiting workload to one worker: a gang could choose among many sets of nodes."""
    return replace(
        cluster_snapshot,
        workloads=tuple(
            replace(w, workers=w.workers[:1], min_workers=None)
            if all(worker.state is WorkerState.PENDING for worker in w.workers)
            else w
            for w in cluster_snapshot.workloads
        ),
    )


def non_wait_decisions(cluster_snapshot: Snapshot) -> list[Decision]:
    return [d for d in decide(cluster_snapshot).decisions if not isinstance(d, Wait)]


@given(strategies.snapshots().map(with_claims_for_one_worker))
def test_reclaim_bounds_do_not_change_the_decisions_of_a_plan(cluster_snapshot: Snapshot) -> None:
    bounded_decisions = non_wait_decisions(cluster_snapshot)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReclaimBounds, "could_suffice", lambda *_arguments: True)
        assert non_wait_decisions(cluster_snapshot) == bounded_decisions


# ---- exactness of the bounds: a looser bound decides alike, but searches in vain

OTHER_PROJECTS_SCOPE = PreemptionScope(
    other_projects=True, own_project=False, surplus_only=False, lent=False
)
OWN_PROJECT_SCOPE = PreemptionScope(
    other_projects=False, own_project=True, surplus_only=False, lent=False
)
PROJECTS = [project("a", 4), project("b", 1), project("c", 1)]
FIRST_NODE = [0]


def bounds_and_claim(
    cluster_snapshot: Snapshot, shares: Mapping[str, int] = {}
) -> tuple[ReclaimBounds, PodSet]:
    """Return the bounds of a snapshot, and the claim of `new` of project a, within its quota."""
    state = PlanningState(cluster_snapshot, tree_of(cluster_snapshot))
    for name, fair_share in shares.items():
        state.tree.projects[name].fair_share = fair_share
    planned = state.by_name["new"]
    return ReclaimBounds(state), PodSet(planned, tuple(planned.members), is_surplus=False)


RIVAL_USAGE = {
    "no rival": ([], False),
    "rival at its quota": ([job("x", 1, "b", on="n1:0")], False),
    "rival one GPU over": ([job("x", 2, "b", on="n1:0,1")], True),
    "rival half a GPU over": (
        [job("x", 1, "b", on="n1:0"), job("y", 0.5, "b", on="n1:1")],
        True,
    ),
    "own project over": ([job("x", 3, "a", on="n1:0,1,2")], False),
}


@pytest.mark.parametrize(("existing", "expected"), RIVAL_USAGE.values(), ids=RIVAL_USAGE)
def test_reclaim_bounds_report_whether_a_rival_project_is_over_its_share(
    existing: list[Workload], expected: bool
) -> None:
    # The rivals b and c have a quota of one GPU each.
    bounds, pod_set = bounds_and_claim(snapshot("1x4", PROJECTS, [*existing, job("new", 1)]))

    assert bounds.has_project_over(pod_set, OTHER_PROJECTS_SCOPE) is expected
    assert bounds.has_project_over(pod_set, OWN_PROJECT_SCOPE)


NODE_USAGE = {
    "two idle GPUs": ("1x2", [], True),
    "one idle GPU and no victim": ("1x1", [], False),
    "rival over its quota on the node": ("1x2", [job("x", 2, "b", on="n1:0,1")], True),
    "rivals within and over their quota": (
        "1x3",
        [job("x", 1, "b", on="n1:0"), job("y", 2, "c", on="n1:1,2")],
        True,
    ),
    "session of the rival on the node": (
        "1x2+1x3",
        [session("s", 1, "b", on="n1:0"), job("x", 2, "b", on="n2:0,1")],
        False,
    ),
    "rival on a different node": ("1x1+1x3", [job("x", 3, "b", on="n2:0,1,2")], False),
}


@pytest.mark.parametrize(("shape", "existing", "expected"), NODE_USAGE.values(), ids=NODE_USAGE)
def test_reclaim_bounds_report_whether_a_node_could_have_room_for_two_gpus(
    shape: str, existing: list[Workload], expected: bool
) -> None:
    # The rivals b and c have a quota of one GPU each.
    bounds, pod_set = bounds_and_claim(snapshot(shape, PROJECTS, [*existing, job("new", 2)]))

    assert bounds.could_suffice(FIRST_NODE, pod_set, OTHER_PROJECTS_SCOPE) is expected


def test_protected_job_does_not_reduce_the_reclaimable_gpus_of_other_projects() -> None:
    projects = [project("a", 4), project("b", 1, min_runtime=3600), project("c", 1)]
    existing = [job("x", 2, "b", on="n1:0,1", started=990), job("y", 2, "c", on="n1:2,3")]
    bounds, pod_set = bounds_and_claim(snapshot("1x4", projects, [*existing, job("new", 2)]))

    assert bounds.could_suffice(FIRST_NODE, pod_set, OTHER_PROJECTS_SCOPE)


def test_reclaim_bounds_at_exact_quota_include_gpus_of_projects_over_their_share() -> None:
    projects = [project("a", 2), project("b", 0)]
    cluster_snapshot = snapshot("1x2", projects, [job("x", 2, "b", on="n1:0,1"), job("new", 2)])
    bounds, pod_set = bounds_and_claim(cluster_snapshot, shares={"b": 2000})

    assert bounds.could_suffice(FIRST_NODE, pod_set, OTHER_PROJECTS_SCOPE)
    assert bounds.has_project_over(pod_set, OTHER_PROJECTS_SCOPE)
