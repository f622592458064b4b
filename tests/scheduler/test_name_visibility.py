"""Names of workloads and projects in reasons, by reader (X, `name_others`)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

import strategies
from builders import job, project, session, snapshot
from runai.hub_service.scheduler import Plan, Snapshot, decide
from runai.hub_service.scheduler.model.plan_json import plan_to_json

FOREIGN_WORKLOADS = {
    "own job stopped for a foreign job": (
        snapshot(
            "1x1",
            [project("secret", 1), project("vision", 0)],
            [job("mine", project="vision", on="n1:0"), job("theirs", project="secret")],
        ),
        "mine",
    ),
    "own job waiting for a foreign stopping job": (
        snapshot(
            "1x1",
            [project("secret", 0), project("vision", 1)],
            [
                job("theirs", project="secret", on="n1:0", state="stopping"),
                job("mine", project="vision", on="n1:0", state="reserved"),
            ],
        ),
        "mine",
    ),
    "own job behind a foreign job": (
        snapshot(
            "1x4",
            [project("secret", 2), project("vision", 3)],
            [
                job("mine-too", 2, "vision", on="n1:0,1"),
                job("mine", 1, "vision"),
                job("theirs", 2, "secret"),
            ],
        ),
        "mine",
    ),
    "own session over the build quota of a shared parent": (
        snapshot(
            "1x3",
            [
                project("parent", 1, build=1),
                project("secret", 1, parent="parent"),
                project("vision", 1, parent="parent"),
            ],
            [
                session("theirs", project="secret", on="n1:0"),
                session("mine", project="vision"),
            ],
        ),
        "mine",
    ),
}


@pytest.mark.parametrize(("snapshot", "reader"), FOREIGN_WORKLOADS.values(), ids=FOREIGN_WORKLOADS)
@pytest.mark.parametrize("names_visible", [True, False])
def test_workloads_and_people_of_other_projects_are_named_only_where_the_policy_allows(
    snapshot: Snapshot, reader: str, *, names_visible: bool
) -> None:
    snapshot = replace(snapshot, policy=replace(snapshot.policy, name_others=names_visible))

    decisions_json = [
        json.dumps(decision)
        for decision in plan_to_json(decide(snapshot))["decisions"]
        if decision["workload"] == reader
    ]

    assert decisions_json
    assert any("theirs" in text for text in decisions_json) is names_visible
    # Without the name of the workload, the reason names its project or the full build quota.
    assert (
        any("secret" in text for text in decisions_json)
        or names_visible
        or "build" in decisions_json[-1]
    )


@given(strategies.snapshots())
def test_hiding_names_changes_no_decision_and_names_no_foreign_workload(snapshot: Snapshot) -> None:
    named = decide(replace(snapshot, policy=replace(snapshot.policy, name_others=True)))
    hidden = decide(replace(snapshot, policy=replace(snapshot.policy, name_others=False)))

    def actions(plan: Plan) -> list[object]:
        return [
            (d.kind, d.workload, getattr(d, "node", None), getattr(d, "devices", None))
            for d in plan.decisions
        ]

    assert actions(named) == actions(hidden)
    projects = {w.name: w.project for w in snapshot.workloads}
    workers = {k.name: w.project for w in snapshot.workloads for k in w.workers}
    for decision in hidden.decisions:
        own_project = projects[decision.workload]
        claimant = getattr(getattr(decision, "reason", None), "for_", None)
        assert claimant is None or projects.get(claimant, own_project) == own_project
        assert all(workers[w] == own_project for w in getattr(decision, "waits_for", ()))
