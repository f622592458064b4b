"""Properties of every cluster: safety, fairness, liveness and stability of plans."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

import builders
import strategies
from builders import applied, job, session, settled, waits, with_workloads
from plan_effects import add, decide_and_note, device_count, fits_somewhere, overbooked, quota_of
from runai.hub_service.scheduler import (
    Move,
    Plan,
    Project,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Wait,
    WorkerState,
    decide,
)
from runai.hub_service.scheduler.model.plan_json import plan_from_json, plan_to_json
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json, snapshot_to_json

SNAPSHOTS = strategies.snapshots()


# ---- a function


@given(SNAPSHOTS, st.randoms(use_true_random=False))
def test_plan_is_independent_of_the_order_of_its_input(
    snapshot: Snapshot, shuffle: random.Random
) -> None:
    reordered = replace(
        snapshot,
        nodes=tuple(shuffle.sample(snapshot.nodes, len(snapshot.nodes))),
        projects=tuple(shuffle.sample(snapshot.projects, len(snapshot.projects))),
        workloads=tuple(shuffle.sample(snapshot.workloads, len(snapshot.workloads))),
    )

    assert decide(snapshot) == decide(reordered)


@given(strategies.impossible())
def test_impossible_snapshot_gets_a_plan_that_overbooks_no_further_device(
    snapshot: Snapshot,
) -> None:
    plan, effects = decide_and_note(snapshot)

    # A device or node may be overbooked already; the plan adds nothing there.
    crowded = set(overbooked(effects.before(), effects.nodes))
    assert set(overbooked(effects.later(), effects.nodes)) <= crowded
    assert decide(snapshot) == plan


@given(SNAPSHOTS)
def test_snapshots_and_plans_are_unchanged_by_a_json_round_trip(snapshot: Snapshot) -> None:
    plan = decide(snapshot)

    assert snapshot_from_json(snapshot_to_json(snapshot)) == snapshot
    assert plan_from_json(plan_to_json(plan)) == plan


# ---- safety


@given(SNAPSHOTS)
def test_plan_overbooks_no_device_or_node(snapshot: Snapshot) -> None:
    _, effects = decide_and_note(snapshot)

    assert overbooked(effects.now(), effects.nodes) == []
    assert overbooked(effects.later(), effects.nodes) == []


@given(SNAPSHOTS)
def test_worker_gets_as_many_distinct_devices_as_it_requests(snapshot: Snapshot) -> None:
    plan, effects = decide_and_note(snapshot)
    workers = {worker.name: worker for _, worker in effects.workers()}

    for decision in plan.decisions:
        if isinstance(decision, Start | Reserve | Move):
            worker = workers[decision.worker]
            devices = [share.device for share in decision.devices]
            requested = device_count(worker)
            assert len(set(devices)) == len(devices) == requested
            if worker.gpu_memory_mib is None and requested:
                assert {share.gpus for share in decision.devices} == {min(1000, worker.gpus)}


@given(SNAPSHOTS)
def test_gangs_have_none_of_their_workers_or_their_minimum(snapshot: Snapshot) -> None:
    plan, effects = decide_and_note(snapshot)
    starts = {d.workload for d in plan.decisions if isinstance(d, Start)}

    for workload in snapshot.workloads:
        active = effects.active_after(workload)
        assert active == 0 or active >= workload.minimum
        if workload.name in starts:
            runs = sum(1 for worker in workload.workers if effects.occupies(worker))
            assert runs >= workload.minimum


@given(SNAPSHOTS)
def test_project_limits_and_build_quotas_are_not_exceeded_at_any_level(snapshot: Snapshot) -> None:
    _, effects = decide_and_note(snapshot)
    before, after = effects.allocated_before(), effects.allocated_after()
    built_before = effects.allocated_before(fixed_only=True)
    built_after = effects.allocated_after(fixed_only=True)

    for name, project in effects.projects.items():
        if project.limit is not None:
            assert after[name] <= max(project.limit, before[name])
        cap = effects.build_quota(project)
        assert built_after[name] <= max(cap, built_before[name])


@given(SNAPSHOTS)
def test_stopping_worker_counts_against_the_project_limit_until_it_ends(
    snapshot: Snapshot,
) -> None:
    _, effects = decide_and_note(snapshot)
    before, after = (
        effects.allocated_at_once(by_plan=False),
        effects.allocated_at_once(by_plan=True),
    )

    for name, project in effects.projects.items():
        if project.limit is not None:
            assert after[name] <= max(project.limit, before[name])


@given(SNAPSHOTS)
def test_sessions_within_the_build_quota_are_never_stopped_or_moved(snapshot: Snapshot) -> None:
    plan, effects = decide_and_note(snapshot)

    for decision in plan.decisions:
        if isinstance(decision, Stop | Move | Resize):
            assert effects.workload_of[decision.worker].is_preemptible


@given(SNAPSHOTS)
def test_every_stop_frees_room_that_its_named_claimant_needs(snapshot: Snapshot) -> None:
    plan, effects = decide_and_note(snapshot)
    gains = {d.workload for d in plan.decisions if isinstance(d, Start | Reserve)}

    for stop in effects.stops.values():
        assert stop.reason.for_ in gains
        # A victim that stayed would block the claimant: by its devices, a limit or a share.
        victim = effects.workload_of[stop.worker]
        usage, allocated = effects.later(), effects.allocated_after()
        for worker in victim.workers:
            if worker.name in effects.stops and effects.stops[worker.name].reason == stop.reason:
                back = effects._placement_before(worker)
                add(usage, back, effects.nodes[back.node])
                for project in effects.path(victim.project):
                    allocated[project.name] += quota_of(worker, effects.nodes[back.node])
        limited = any(
            project.limit is not None and allocated[project.name] > project.limit
            for project in effects.projects.values()
        )
        within_share = all(
            allocated[name] <= max(share.fair_share, share.quota or 0)
            for name, share in plan.projects.items()
        )
        assert overbooked(usage, effects.nodes) or limited or not within_share


@given(SNAPSHOTS)
def test_reclaim_stops_over_quota_jobs_and_preemption_lower_priority_or_surplus(
    snapshot: Snapshot,
) -> None:
    plan, effects = decide_and_note(snapshot)
    before, at_once = effects.allocated_before(), effects.allocated_at_once(by_plan=True)
    started = {d.worker for d in plan.decisions if isinstance(d, Start)}

    for stop in effects.stops.values():
        assert stop.worker not in started
        victim = effects.workload_of[stop.worker]
        claimant = next(w for w in snapshot.workloads if w.name == stop.reason.for_)
        if stop.reason.rule == "R1":
            assert victim.project == claimant.project
            assert not claimant.is_preemptible or victim.rank < claimant.rank
        elif stop.reason.rule == "E1":
            assert victim.project == claimant.project
            assert effects.active_after(victim) >= victim.minimum > 0
            assert effects.active_after(claimant) == claimant.minimum
        elif stop.reason.rule == "Q6":
            after = effects.allocated_after()
            assert victim.is_preemptible
            assert any(k.cpu_milli or k.memory_mib for k in victim.workers)
            assert any(k.gpus or k.gpu_memory_mib for k in claimant.workers)
            assert all(after[p.name] <= effects.quota(p) for p in effects.path(claimant.project))
        else:
            assert stop.reason.rule == "R2"
            assert victim.project != claimant.project
            # A parent's own workloads get the rest of its quota, after its children's quotas.
            is_above = victim.project in {p.name for p in effects.path(claimant.project)}
            # Its project may exceed its quota by what the same plan started.
            over = [
                p
                for p in effects.path(victim.project)
                if max(before[p.name], at_once[p.name]) > effects.quota(p)
            ]
            assert is_above or over


@given(SNAPSHOTS)
def test_no_workload_is_stopped_within_its_minimum_run_time(snapshot: Snapshot) -> None:
    plan, effects = decide_and_note(snapshot)

    moves = {d.worker for d in plan.decisions if isinstance(d, Move) and d.reason.rule == "R10"}
    for name in effects.stops.keys() | moves:
        workload = effects.workload_of[name]
        protected = max(p.min_runtime for p in effects.path(workload.project))
        if protected and (name in moves or effects.active_after(workload) == 0):
            starts = [k.started for k in workload.workers if k.started is not None]
            assert max(starts) + protected <= snapshot.now


@given(SNAPSHOTS)
def test_reclaim_stops_a_workload_only_if_its_project_exceeds_quota_or_share(
    snapshot: Snapshot,
) -> None:
    plan, effects = decide_and_note(snapshot)
    after = effects.allocated_after()

    for stop in effects.stops.values():
        victim = effects.workload_of[stop.worker]
        if stop.reason.rule != "R2" or any(p.parent == victim.project for p in snapshot.projects):
            continue
        victim_milli = sum(
            len(k.devices) * min(1000, k.gpus or 1000)
            for k in victim.workers
            if k.name in effects.stops
        )
        assert any(
            after[p.name] + victim_milli > min(effects.quota(p), plan.projects[p.name].fair_share)
            for p in effects.path(victim.project)
        )


# ---- a reason for every wait


@given(SNAPSHOTS)
def test_waiting_workload_has_exactly_one_wait_with_a_reason(snapshot: Snapshot) -> None:
    plan, effects = decide_and_note(snapshot)
    waits = [d for d in plan.decisions if isinstance(d, Wait)]
    expected = {
        w.name
        for w in snapshot.workloads
        if any(k.state in {WorkerState.PENDING, WorkerState.RESERVED} for k in w.workers)
        and sum(1 for k in w.workers if effects.occupies(k)) < w.minimum
        and not any(
            k.name in effects.stops or isinstance(effects.new.get(k.name), Move) for k in w.workers
        )
    }

    assert Counter(d.workload for d in waits) == Counter(expected)
    for wait in waits:
        assert wait.reason.text
    positions = {(effects.workload_of[f"{d.workload}-0"].project, d.position) for d in waits}
    assert len(positions) == len(waits)


# ---- liveness


@given(SNAPSHOTS)
def test_no_gpu_idles_that_a_ready_workload_could_use(snapshot: Snapshot) -> None:
    plan, effects = decide_and_note(snapshot)
    usage, allocated = effects.now_and_reserved(), effects.allocated_after()
    built = effects.allocated_after(fixed_only=True)

    for wait in plan.decisions:
        if not isinstance(wait, Wait) or wait.reason.code in {"held_for", "stopping"}:
            continue
        workload = next(w for w in snapshot.workloads if w.name == wait.workload)
        if wait.reason.rule == "E4":
            assert workload.guaranteed
            continue
        running = sum(1 for k in workload.workers if effects.occupies(k))
        pending_workers = [k for k in workload.workers if k.state is WorkerState.PENDING]
        pending_workers = pending_workers[: workload.minimum - running]
        demand = sum(
            -(-(k.gpu_memory_mib or 0) * 1000 // 1000) * k.devices_wanted
            or (k.gpus if k.gpus > 1000 else k.gpus * k.devices_wanted)
            for k in pending_workers
        )
        allowed = all(
            (p.limit is None or allocated[p.name] + demand <= p.limit)
            and (workload.is_preemptible or built[p.name] + demand <= effects.build_quota(p))
            for p in effects.path(workload.project)
        )
        assert not (allowed and fits_somewhere(pending_workers, usage, effects.nodes))


@given(strategies.pending())
def test_priority_precedes_age_inside_a_project(snapshot: Snapshot) -> None:
    plan, _ = decide_and_note(snapshot)
    starts = {d.workload for d in plan.decisions if isinstance(d, Start)}

    def request_of(name: str) -> tuple[object, ...]:
        workload = next(w for w in snapshot.workloads if w.name == name)
        return (
            workload.project,
            workload.is_preemptible,
            workload.kind,
            workload.minimum,
            [replace(worker, name="") for worker in workload.workers],
        )

    for high in snapshot.workloads:
        for low in snapshot.workloads:
            if request_of(high.name) == request_of(low.name) and high.rank > low.rank:
                assert high.name in starts or low.name not in starts


@given(SNAPSHOTS)
def test_workload_within_quota_never_waits_if_one_reclaimable_victim_makes_room(
    snapshot: Snapshot,
) -> None:
    snapshot = settled(snapshot, cycles=3, seconds=0)
    _, effects = decide_and_note(snapshot)
    allocated, built = effects.allocated_after(), effects.allocated_after(fixed_only=True)
    waiting_names = {name for name, code in waits(effects.plan).items() if code != "held_for"}
    parents = {p.parent for p in snapshot.projects}  # their own work gets the rest

    for workload in snapshot.workloads:
        minimum_workers = workload.workers[: workload.minimum]
        if workload.name not in waiting_names or effects.active_after(workload):
            continue
        if workload.project in parents:
            continue
        demand = sum(effects.pending_quota(worker) for worker in minimum_workers)
        is_within = all(
            allocated[p.name] + demand <= min(effects.quota(p), p.limit or 10**9)
            and (workload.is_preemptible or built[p.name] + demand <= effects.build_quota(p))
            for p in effects.path(workload.project)
        )
        for victim in snapshot.workloads if is_within else ():
            if effects.may_reclaim(workload, victim, allocated):
                usage = effects.now_and_reserved()
                for worker in victim.workers:
                    if allocation := effects.placement_after(worker):
                        add(usage, allocation, effects.nodes[allocation.node], -1)
                assert not fits_somewhere(list(minimum_workers), usage, effects.nodes)


@given(
    build_quotas=st.lists(st.integers(0, 3), min_size=2, max_size=3),
    spare_gpus=st.integers(0, 3),
    job_owners=st.lists(st.integers(0, 2), max_size=12),
    data=st.data(),
)
def test_sessions_within_the_build_quotas_always_start(
    build_quotas: list[int], spare_gpus: int, job_owners: list[int], data: st.DataObject
) -> None:
    # The cluster can honour all quotas, training runs wherever it fits, and all users log in.
    owners = [builders.project(f"p{i}", quota) for i, quota in enumerate(build_quotas)]
    running = [job(f"j{n}", 1, f"p{i % len(build_quotas)}") for n, i in enumerate(job_owners)]
    snapshot = settled(
        builders.snapshot(f"1x{sum(build_quotas) + spare_gpus}", owners, running), seconds=0
    )
    login_projects = data.draw(
        st.permutations([i for i, quota in enumerate(build_quotas) for _ in range(quota)])
    )

    logins = [session(f"u{n}-s", 1, f"p{i}") for n, i in enumerate(login_projects)]
    snapshot = settled(with_workloads(snapshot, *logins), cycles=3, seconds=0)

    assert {login.name for login in logins} <= builders.running(snapshot)


@given(
    quotas=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=4),
    spare_gpus=st.integers(0, 2),
    first_owners=st.lists(st.integers(0, 3), max_size=8),
    late_owners=st.lists(st.integers(0, 3), max_size=8),
)
@example(
    quotas=[(1, True), (1, False), (0, False)], spare_gpus=0, first_owners=[2], late_owners=[1]
)
def test_project_gets_its_quota_despite_gpus_that_are_never_lent(
    quotas: list[tuple[int, bool]], spare_gpus: int, first_owners: list[int], late_owners: list[int]
) -> None:
    owners = [
        builders.project(f"p{i}", quota, never_lent=quota * never_lends)
        for i, (quota, never_lends) in enumerate(quotas)
    ]
    size = max(1, sum(quota for quota, _ in quotas) + spare_gpus)
    running = [job(f"j{n}", 1, f"p{i % len(quotas)}") for n, i in enumerate(first_owners)]
    snapshot = settled(builders.snapshot(f"1x{size}", owners, running), seconds=0)
    snapshot = with_workloads(
        snapshot, *(job(f"k{n}", 1, f"p{i % len(quotas)}") for n, i in enumerate(late_owners))
    )
    snapshot = settled(snapshot, cycles=4, seconds=0)

    runs = builders.running(snapshot)
    for owner in owners:
        jobs = [workload.name for workload in snapshot.workloads if workload.project == owner.name]
        assert len(runs & set(jobs)) >= min(len(jobs), quota_in_gpus(owner))


def quota_in_gpus(owner: Project) -> int:
    assert isinstance(owner.quota, int)
    return owner.quota // 1000


# ---- stability


def is_settled(plan: Plan) -> bool:
    return not any(isinstance(d, Stop | Move | Resize | Reserve | Start) for d in plan.decisions)


@pytest.mark.parametrize("grace", [False, True], ids=["immediate exit", "with a grace period"])
@given(snapshot=SNAPSHOTS)
def test_plans_make_no_more_decisions_after_a_few_cycles(
    snapshot: Snapshot, *, grace: bool
) -> None:
    # Two plans, and no more. A worker stopped with a grace period leaves a cycle later; with
    # consolidation, a stopped workload may find a place by a move that it asks for only then (R10).
    # A victim of another project may then preempt guaranteed workers of its own (E4).
    plans = 2 + grace + ("consolidate" in snapshot.policy.phases)
    plans += 2 * grace * any(workload.guaranteed_workers for workload in snapshot.workloads)
    current_snapshot = snapshot
    for cycle in range(9):
        plan = decide(current_snapshot)
        note(f"cycle {cycle}")
        for decision in plan.decisions:
            note(str(decision))
        if cycle >= plans:
            assert is_settled(plan)
        current_snapshot = applied(current_snapshot, plan, seconds=0, grace=grace)
