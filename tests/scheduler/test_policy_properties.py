"""Properties of every cluster under the rules that an operator may switch on."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import strategies
from builders import settled
from plan_effects import PlanEffects, decide_and_note, fits_somewhere, overbooked
from runai.hub_service.scheduler import (
    Move,
    Plan,
    Policy,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Wait,
    WorkerState,
    decide,
)

SNAPSHOTS = strategies.snapshots()


def with_policy(snapshot: Snapshot, **policy: object) -> Snapshot:
    return replace(snapshot, policy=replace(snapshot.policy, **policy))  # type: ignore[arg-type]


def preemptions(plan: Plan) -> list[Stop | Move]:
    """Return the decisions that take devices from running workers for other workloads."""
    return [d for d in plan.decisions if isinstance(d, Stop | Move) and d.reason.rule != "R11"]


# ---- R10


@given(SNAPSHOTS)
def test_consolidation_stops_no_worker_and_moves_only_preemptible_jobs(snapshot: Snapshot) -> None:
    snapshot = with_policy(snapshot, phases=("allocate", "consolidate"))
    plan, effects = decide_and_note(snapshot)
    gains = {d.workload for d in plan.decisions if isinstance(d, Start | Reserve)}

    assert not effects.stops
    for _, worker in effects.workers():
        if worker.state is WorkerState.RUNNING:
            assert effects.placement_after(worker)
    for move in preemptions(plan):
        mover = effects.workload_of[move.worker]
        claimant = next(w for w in snapshot.workloads if w.name == move.reason.for_)
        assert (move.reason.code, move.reason.rule) == ("consolidated", "R10")
        assert mover.is_preemptible
        assert mover.kind == "job"
        assert claimant.is_preemptible
        assert claimant.name in gains


@given(SNAPSHOTS)
def test_consolidation_moves_workers_only_if_the_claimant_needs_their_room(
    snapshot: Snapshot,
) -> None:
    # Moving all workers back that moved for one workload leaves no room for that workload.
    plan, effects = decide_and_note(with_policy(snapshot, phases=("allocate", "consolidate")))

    for move in preemptions(plan):
        usage = effects.later()
        moved_workers = [d.worker for d in preemptions(plan) if d.reason.for_ == move.reason.for_]
        for _, worker in effects.workers():
            if worker.name in moved_workers:
                effects.put_back(usage, worker)
        assert overbooked(usage, effects.nodes)


@given(SNAPSHOTS, st.integers(0, 2))
def test_consolidation_spares_other_projects_within_quota_and_jobs_without_checkpoints(
    snapshot: Snapshot, max_moves: int
) -> None:
    phases = ("allocate", "consolidate")
    plan, effects = decide_and_note(
        with_policy(snapshot, phases=phases, moves="saves", max_moves=max_moves)
    )
    allocated = effects.allocated_after()
    parents = {p.parent for p in snapshot.projects}  # their own work gets the rest

    movers = {effects.workload_of[d.worker].name for d in preemptions(plan)}
    assert len(movers) <= max_moves
    for move in preemptions(plan):
        mover = effects.workload_of[move.worker]
        claimant = next(w for w in snapshot.workloads if w.name == move.reason.for_)
        assert mover.saves
        if mover.project not in parents | {claimant.project}:
            assert allocated[mover.project] > effects.quota(effects.projects[mover.project])


@given(SNAPSHOTS)
def test_quota_moves_serve_claims_within_quota_and_move_only_preemptible_jobs(
    snapshot: Snapshot,
) -> None:
    plan, effects = decide_and_note(with_policy(snapshot, phases=Policy().phases))
    allocated = effects.allocated_after()
    parents = {p.parent for p in snapshot.projects}

    for move in preemptions(plan):
        if isinstance(move, Move) and move.reason.rule == "R10":
            mover = effects.workload_of[move.worker]
            claimant = next(w for w in snapshot.workloads if w.name == move.reason.for_)
            assert (mover.is_preemptible, mover.kind) == (True, "job")
            assert effects.placement_after(next(k for k in mover.workers if k.name == move.worker))
            if claimant.project not in parents:
                path = effects.path(claimant.project)
                assert all(allocated[p.name] <= effects.quota(p) for p in path)


# ---- R8


@given(SNAPSHOTS, st.integers(0, 3))
def test_plan_preempts_no_more_workers_than_max_evictions(
    snapshot: Snapshot, max_evictions: int
) -> None:
    plan = decide(with_policy(snapshot, phases=strategies.EVERY_PHASE, max_evictions=max_evictions))

    assert len(preemptions(plan)) <= max_evictions


@given(SNAPSHOTS, st.integers(0, 2), st.data())
def test_no_job_is_paused_more_often_than_max_pauses_per_hour(
    snapshot: Snapshot, max_pauses: int, data: st.DataObject
) -> None:
    times = st.lists(st.sampled_from([10, 500, 900, 3000, 4000]), max_size=3)
    workloads = tuple(
        replace(w, pauses=tuple(sorted(data.draw(times)))) for w in snapshot.workloads
    )
    snapshot = replace(snapshot, now=4400, workloads=workloads)
    plan, effects = decide_and_note(
        with_policy(snapshot, phases=strategies.EVERY_PHASE, max_pauses_per_hour=max_pauses)
    )

    for preemption in preemptions(plan):
        workload = effects.workload_of[preemption.worker]
        shrinks = (
            preemption.reason.code == "shrunk" or effects.active_after(workload) >= workload.minimum
        )
        if not shrinks or preemption.reason.rule == "R10":
            assert sum(1 for time in workload.pauses if time > snapshot.now - 3600) < max_pauses


# ---- liveness and stability


@given(SNAPSHOTS, st.booleans())
def test_wait_reason_for_reserved_gpus_names_its_rule_and_a_workload_or_project(
    snapshot: Snapshot, backfill: bool
) -> None:
    plan = decide(with_policy(snapshot, phases=strategies.EVERY_PHASE, backfill=backfill))

    names = {w.name for w in snapshot.workloads} | {p.name for p in snapshot.projects}
    for wait in plan.decisions:
        if isinstance(wait, Wait) and wait.reason.code == "held_for":
            assert wait.reason.rule in {"R7", "O4", "Q2"}
            assert wait.reason.for_ in names


@given(SNAPSHOTS, st.integers(0, 8), st.data())
def test_new_work_never_reclaims_from_other_projects_within_quota(
    snapshot: Snapshot, index: int, data: st.DataObject
) -> None:
    settled_snapshot = settled(snapshot, cycles=3, seconds=0)
    owners = [
        p.name
        for p in settled_snapshot.projects
        if not any(c.parent == p.name for c in settled_snapshot.projects)
    ]
    new_workload = replace(data.draw(strategies.workloads(100 + index, owners)), submitted=50)
    grown_snapshot = replace(
        settled_snapshot, workloads=(*settled_snapshot.workloads, new_workload)
    )
    before = PlanEffects(settled_snapshot, decide(settled_snapshot))
    allocated = before.allocated_before()

    plan, _ = decide_and_note(grown_snapshot)

    for stop in preemptions(plan):
        victim = before.workload_of[stop.worker]
        is_other_project = victim.project in owners and victim.project != new_workload.project
        if stop.reason.rule == "R2" and isinstance(stop, Stop) and is_other_project:
            levels = [p for p in before.path(victim.project) if allocated[p.name] > before.quota(p)]
            assert levels, "some level of its project was over its quota"


def is_settled(plan: Plan) -> bool:
    return not any(isinstance(d, Stop | Move | Resize | Reserve | Start) for d in plan.decisions)


@given(SNAPSHOTS)
def test_settled_cluster_has_no_waiting_gang_that_fits_without_moves(snapshot: Snapshot) -> None:
    settled_snapshot = settled(
        with_policy(snapshot, phases=strategies.EVERY_PHASE), cycles=6, seconds=0
    )
    plan, effects = decide_and_note(settled_snapshot)
    usage, allocated = effects.now_and_reserved(), effects.allocated_after()
    wait_rules = {(d.workload, d.reason.rule) for d in plan.decisions if isinstance(d, Wait)}

    for workload in settled_snapshot.workloads:
        if (
            effects.active_after(workload)
            or not workload.is_preemptible
            or not is_settled(effects.plan)
        ):
            continue
        if workload.guaranteed:
            continue  # E4: it may wait for its quota
        if (workload.name, "O4") in wait_rules:
            continue  # for an older gang, whose victims may be guaranteed (E4)
        minimum_workers = list(workload.workers[: workload.minimum])
        demand = sum(effects.pending_quota(worker) for worker in minimum_workers)
        if all(
            p.limit is None or allocated[p.name] + demand <= p.limit
            for p in effects.path(workload.project)
        ) and not any(p.never_lent for p in settled_snapshot.projects):
            assert not fits_somewhere(minimum_workers, usage, effects.nodes)
