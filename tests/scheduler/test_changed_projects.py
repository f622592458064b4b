"""Projects that change while their work runs: lowered limits and quotas, former members."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

import strategies
from builders import applied, job, project, sentence, session, snapshot, waits, with_workloads
from plan_effects import decide_and_note
from runai.hub_service.scheduler import (
    ClusterIndex,
    Move,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    WorkerState,
    changes_between,
    decide,
)

CHANGED_SNAPSHOTS = strategies.changed()


def stops(snapshot: Snapshot) -> dict[str, str]:
    """Return the sentence of each workload that the plan stops."""
    return {d.workload: d.reason.text for d in decide(snapshot).decisions if isinstance(d, Stop)}


# ---- limits


@given(CHANGED_SNAPSHOTS)
def test_lowered_project_limit_is_not_exceeded_by_new_starts(snapshot: Snapshot) -> None:
    _, effects = decide_and_note(snapshot)
    before, after = effects.allocated_before(), effects.allocated_after()

    for name, changed in effects.projects.items():
        if changed.limit is not None:
            assert after[name] <= max(changed.limit, before[name])


@given(CHANGED_SNAPSHOTS)
def test_lowered_project_limit_stops_no_job_without_a_claimant(snapshot: Snapshot) -> None:
    running = tuple(
        w for w in snapshot.workloads if all(k.state is WorkerState.RUNNING for k in w.workers)
    )

    assert stops(replace(snapshot, workloads=running)) == {}


@pytest.mark.parametrize(
    ("quota", "limit", "entitlement"),
    [
        pytest.param(1, 1, "quota of 1 GPU", id="quota and limit"),
        pytest.param(2, 1, "limit of 1 GPU", id="limit below the quota"),
        pytest.param(None, 1, "limit of 1 GPU", id="unlimited quota"),
    ],
)
def test_jobs_above_a_lowered_project_limit_are_reclaimed_for_a_project_within_quota(
    quota: float | None, limit: float, entitlement: str
) -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("lim", quota, limit=limit), project("own", 1)],
        [
            job("first", 1, "lim", on="n1:0", submitted=1, started=1),
            job("second", 1, "lim", on="n1:1", submitted=2, started=2),
        ],
    )
    assert stops(cluster_snapshot) == {}

    with_claim = with_workloads(cluster_snapshot, job("claim", 1, "own"))

    assert stops(with_claim) == {"second": f"lim is over its {entitlement}: 1 GPU goes to claim"}
    after = applied(with_claim, decide(with_claim))
    assert waits(decide(after)).get("second") == "over_limit"


def test_jobs_above_a_lowered_limit_stop_before_jobs_of_a_project_further_over_quota() -> None:
    cluster_snapshot = snapshot(
        "1x6",
        [project("lim", 1, limit=1), project("over", 0), project("own", 1)],
        [
            *(job(f"lim-{i}", 1, "lim", on=f"n1:{i}") for i in range(2)),
            *(job(f"over-{i}", 1, "over", on=f"n1:{i}") for i in range(2, 6)),
            job("claim", 1, "own"),
        ],
    )

    # "lim" is one GPU over its limit, "over" four GPUs over its quota of zero.
    assert list(stops(cluster_snapshot)) == ["lim-1"]
    unlimited = replace(
        cluster_snapshot,
        projects=(
            replace(cluster_snapshot.projects[0], limit=None),
            *cluster_snapshot.projects[1:],
        ),
    )
    assert list(stops(unlimited)) == ["over-5"]


# ---- users who left


@given(CHANGED_SNAPSHOTS)
@settings(max_examples=100)
def test_jobs_of_a_former_project_member_neither_start_nor_grow(snapshot: Snapshot) -> None:
    plan, _ = decide_and_note(snapshot)
    former_members = {p.name: p.former_members for p in snapshot.projects}
    runs = {
        w.name for w in snapshot.workloads if any(k.state is WorkerState.RUNNING for k in w.workers)
    }

    for decision in plan.decisions:
        workload = next(w for w in snapshot.workloads if w.name == decision.workload)
        if workload.user in former_members[workload.project]:
            assert not isinstance(decision, Start | Reserve | Resize)
            assert not isinstance(decision, Move) or workload.name in runs


@given(CHANGED_SNAPSHOTS)
def test_cluster_index_with_former_members_gives_the_plan_of_its_snapshot(
    snapshot: Snapshot,
) -> None:
    plain = replace(
        snapshot, projects=tuple(replace(p, former_members=()) for p in snapshot.projects)
    )
    index = ClusterIndex(plain)
    decide(index)

    index.apply(changes_between(plain, snapshot))
    assert decide(index) == decide(snapshot)
    index.apply(changes_between(snapshot, plain))
    assert decide(index) == decide(plain)


def test_running_jobs_of_a_former_member_continue_and_waiting_jobs_wait_for_an_admin() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("vision", 4, former_members=("bob",))],
        [
            job("runs", 1, "vision", user="bob", on="n1:0"),
            job("waits", 1, "vision", user="bob"),
            session("notebook", 1, "vision", user="bob"),
            job("other", 1, "vision", user="ana"),
        ],
    )

    plan = decide(cluster_snapshot)

    assert [d.workload for d in plan.decisions if isinstance(d, Start)] == ["other"]
    assert waits(plan) == {"waits": "not_a_member", "notebook": "not_a_member"}
    assert sentence(plan, "waits") == (
        "bob is no member of vision any more; it starts when an admin of vision adds bob again"
    )


def test_elastic_job_of_a_former_project_member_is_not_resized() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("vision", 4, former_members=("bob",))],
        [
            job("elastic", 1, "vision", user="bob", workers=4, min_workers=1, on="n1:0"),
        ],
    )

    assert decide(cluster_snapshot).decisions == ()


def test_waiting_jobs_of_a_former_project_member_claim_no_fair_share() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("vision", 2, former_members=("bob",)), project("nlp", 2)],
        [
            job("waits", 2, "vision", user="bob"),
            job("big", 4, "nlp"),
        ],
    )

    shares = decide(cluster_snapshot).projects
    assert (shares["vision"].fair_share, shares["nlp"].fair_share) == (0, 4000)
