"""Properties of every cluster under the rules that an operator may switch on."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import strategies
from builders import settled
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
from world import World, fits_somewhere, looked_at, overbooked

SNAPSHOTS = strategies.snapshots()


def under(snapshot: Snapshot, **policy: object) -> Snapshot:
    return replace(snapshot, policy=replace(snapshot.policy, **policy))  # type: ignore[arg-type]


def losing(plan: Plan) -> list[Stop | Move]:
    """Return the decisions that take devices from running workers for other workloads."""
    return [d for d in plan.decisions if isinstance(d, Stop | Move) and d.reason.rule != "R11"]


# ---- R10


@given(SNAPSHOTS)
def test_consolidation_stops_no_worker_and_moves_only_preemptible_jobs(snapshot: Snapshot) -> None:
    snapshot = under(snapshot, phases=("allocate", "consolidate"))
    plan, world = looked_at(snapshot)
    gains = {d.workload for d in plan.decisions if isinstance(d, Start | Reserve)}

    assert not world.stops
    for _, worker in world.workers():
        if worker.state is WorkerState.RUNNING:
            assert world.keeps(worker)
    for move in losing(plan):
        mover = world.workload_of[move.worker]
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
    plan, world = looked_at(under(snapshot, phases=("allocate", "consolidate")))

    for move in losing(plan):
        usage = world.later()
        theirs = [d.worker for d in losing(plan) if d.reason.for_ == move.reason.for_]
        for _, worker in world.workers():
            if worker.name in theirs:
                world.put_back(usage, worker)
        assert overbooked(usage, world.nodes)


@given(SNAPSHOTS, st.integers(0, 2))
def test_consolidation_spares_other_projects_within_quota_and_jobs_that_do_not_save(
    snapshot: Snapshot, most: int
) -> None:
    phases = ("allocate", "consolidate")
    plan, world = looked_at(under(snapshot, phases=phases, moves="saves", max_moves=most))
    held = world.held_after()
    parents = {p.parent for p in snapshot.projects}  # their own work gets the rest

    movers = {world.workload_of[d.worker].name for d in losing(plan)}
    assert len(movers) <= most
    for move in losing(plan):
        mover = world.workload_of[move.worker]
        claimant = next(w for w in snapshot.workloads if w.name == move.reason.for_)
        assert mover.saves
        if mover.project not in parents | {claimant.project}:
            assert held[mover.project] > world.quota(world.projects[mover.project])


@given(SNAPSHOTS)
def test_quota_moves_serve_claims_within_their_quota_and_move_preemptible_jobs(
    snapshot: Snapshot,
) -> None:
    plan, world = looked_at(under(snapshot, phases=Policy().phases))
    held = world.held_after()
    parents = {p.parent for p in snapshot.projects}

    for move in losing(plan):
        if isinstance(move, Move) and move.reason.rule == "R10":
            mover = world.workload_of[move.worker]
            claimant = next(w for w in snapshot.workloads if w.name == move.reason.for_)
            assert (mover.is_preemptible, mover.kind) == (True, "job")
            assert world.keeps(next(k for k in mover.workers if k.name == move.worker))
            if claimant.project not in parents:
                path = world.path(claimant.project)
                assert all(held[p.name] <= world.quota(p) for p in path)


# ---- R8


@given(SNAPSHOTS, st.integers(0, 3))
def test_a_plan_takes_from_no_more_workers_than_it_may(snapshot: Snapshot, most: int) -> None:
    plan = decide(under(snapshot, phases=strategies.EVERY_PHASE, max_evictions=most))

    assert len(losing(plan)) <= most


@given(SNAPSHOTS, st.integers(0, 2), st.data())
def test_no_job_is_paused_more_often_than_max_pauses_per_hour(
    snapshot: Snapshot, most: int, data: st.DataObject
) -> None:
    times = st.lists(st.sampled_from([10, 500, 900, 3000, 4000]), max_size=3)
    workloads = tuple(
        replace(w, pauses=tuple(sorted(data.draw(times)))) for w in snapshot.workloads
    )
    snapshot = replace(snapshot, now=4400, workloads=workloads)
    plan, world = looked_at(
        under(snapshot, phases=strategies.EVERY_PHASE, max_pauses_per_hour=most)
    )

    for lost in losing(plan):
        workload = world.workload_of[lost.worker]
        shrinks = lost.reason.code == "shrunk" or world.active_after(workload) >= workload.minimum
        if not shrinks or lost.reason.rule == "R10":
            assert sum(1 for time in workload.pauses if time > 4400 - 3600) < most


# ---- liveness and stability


@given(SNAPSHOTS, st.booleans())
def test_held_for_wait_names_its_rule_and_a_workload_or_project(
    snapshot: Snapshot, backfill: bool
) -> None:
    plan = decide(under(snapshot, phases=strategies.EVERY_PHASE, backfill=backfill))

    names = {w.name for w in snapshot.workloads} | {p.name for p in snapshot.projects}
    for wait in plan.decisions:
        if isinstance(wait, Wait) and wait.reason.code == "held_for":
            assert wait.reason.rule in {"R7", "O4", "Q2"}
            assert wait.reason.for_ in names


@given(SNAPSHOTS, st.integers(0, 8), st.data())
def test_more_work_in_one_project_never_stops_anothers_within_its_quota(
    snapshot: Snapshot, index: int, data: st.DataObject
) -> None:
    world = settled(snapshot, cycles=3, seconds=0)
    owners = [p.name for p in world.projects if not any(c.parent == p.name for c in world.projects)]
    late = replace(data.draw(strategies.workloads(100 + index, owners)), submitted=50)
    more = replace(world, workloads=(*world.workloads, late))
    before = World(world, decide(world))
    held = before.held_before()

    plan, _ = looked_at(more)

    for stop in losing(plan):
        victim = before.workload_of[stop.worker]
        others = victim.project in owners and victim.project != late.project
        if stop.reason.rule == "R2" and isinstance(stop, Stop) and others:
            levels = [p for p in before.path(victim.project) if held[p.name] > before.quota(p)]
            assert levels, "some level of its project was over its quota"


def rests(plan: Plan) -> bool:
    return not any(isinstance(d, Stop | Move | Resize | Reserve | Start) for d in plan.decisions)


@given(SNAPSHOTS)
def test_settled_cluster_has_no_waiting_gang_that_fits_without_moves(snapshot: Snapshot) -> None:
    world = settled(under(snapshot, phases=strategies.EVERY_PHASE), cycles=6, seconds=0)
    plan, seen = looked_at(world)
    usage, held = seen.now_and_reserved(), seen.held_after()
    held_for = {(d.workload, d.reason.rule) for d in plan.decisions if isinstance(d, Wait)}

    for workload in world.workloads:
        if seen.active_after(workload) or not workload.is_preemptible or not rests(seen.plan):
            continue
        if workload.guaranteed:
            continue  # E4: it may wait for its quota
        if (workload.name, "O4") in held_for:
            continue  # for an older gang, whose victims may be guaranteed (E4)
        wanted = list(workload.workers[: workload.minimum])
        demand = sum(seen.pending_quota(worker) for worker in wanted)
        if all(
            p.limit is None or held[p.name] + demand <= p.limit for p in seen.path(workload.project)
        ) and not any(p.never_lent for p in world.projects):
            assert not fits_somewhere(wanted, usage, seen.nodes)
