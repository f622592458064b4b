"""Gangs that lack workers: no plan moves, starts or holds only a part of them (P4, R11).

The property simulates worlds where workers are lost, nodes go and graces end; the scenarios name
the ways in which a part of a gang could arise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from builders import (
    applied,
    job,
    moved,
    project,
    reserved,
    session,
    snapshot,
    started,
    stopped,
    waits,
    without_workloads,
)
from incomplete_gangs import incomplete_gangs, is_short, lost
from plan_effects import PlanEffects, overbooked
from runai.hub_service.scheduler import (
    Move,
    Plan,
    Project,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Wait,
    Worker,
    WorkerState,
    Workload,
    decide,
    milli_gpus,
)
from strategies import EVERY_PHASE

CYCLES = 10
SNAPSHOTS = incomplete_gangs()


def partial_gang_violations(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each gang that a plan starts, stops, moves, holds or leaves in part."""
    decided = {d.worker: d for d in plan.decisions if not isinstance(d, Wait)}
    stops_stale = "stop_stale_gangs" in snapshot.policy.phases
    for gang in snapshot.workloads:
        fates = Counter(_fate(worker, decided.get(worker.name)) for worker in gang.workers)
        runs, starts, moves = fates["runs"], fates["starts"], fates["moves"]
        placed = runs + starts + moves + fates["reserves"] + fates["kept"]
        placed_or_stopping = placed + fates["stopping"]
        description = f"{gang.name}, at least {gang.minimum}: {dict(fates)}"
        if starts and runs + starts + moves < gang.minimum:
            yield f"a part starts of {description}"
        if fates["stops"] and placed and runs + starts + moves < gang.minimum:
            yield f"a part stops of {description}"
        if 0 < placed < gang.minimum:
            if starts or moves or fates["reserves"] or fates["stops"]:
                yield f"a part is left of {description}"
            if fates["kept"] and placed_or_stopping < gang.minimum:
                yield f"a part is held of {description}"
            if stops_stale and gang.kind == "job" and _is_overdue(gang, snapshot.now):
                yield f"a part stays after its grace of {description}"


def _is_overdue(gang: Workload, now: int) -> bool:
    return gang.below_min_since is not None and now - gang.below_min_since > gang.grace


def _fate(worker: Worker, decision: object) -> str:
    match decision:
        case Start():
            return "starts"
        case Reserve():
            return "reserves"
        case Move():
            return "moves"
        case Stop():
            return "stops"
        case Unreserve():
            return "dropped"
        case _:
            return {"running": "runs", "reserved": "kept"}.get(worker.state, worker.state)


def aged(previous_snapshot: Snapshot, next_snapshot: Snapshot) -> Snapshot:
    """Set the time since which each gang lacks workers, as a cluster does."""
    return replace(
        next_snapshot,
        workloads=tuple(
            replace(
                w,
                below_min_since=(w.below_min_since or previous_snapshot.now)
                if is_short(w)
                else None,
            )
            for w in next_snapshot.workloads
        ),
    )


def with_lost_worker(snapshot: Snapshot, worker_number: int) -> Snapshot:
    """Lose one running worker, chosen by a number."""
    names = [
        k.name for w in snapshot.workloads for k in w.workers if k.state is WorkerState.RUNNING
    ]
    name = names[worker_number % len(names)] if names else ""
    return replace(
        snapshot,
        workloads=tuple(
            replace(w, workers=tuple(lost(k) if k.name == name else k for k in w.workers))
            for w in snapshot.workloads
        ),
    )


# ---- always


@given(
    snapshot=SNAPSHOTS,
    losses=st.lists(st.none() | st.integers(0, 20), max_size=4),
    seconds=st.sampled_from([10, 61]),
    grace=st.booleans(),
)
def test_gang_has_its_minimum_of_workers_or_waits_whole(
    snapshot: Snapshot, losses: list[int | None], seconds: int, grace: bool
) -> None:
    for cycle in range(CYCLES):
        plan = decide(snapshot)
        note(f"cycle {cycle} at {snapshot.now}")
        for decision in plan.decisions:
            note(str(decision))
        assert list(partial_gang_violations(snapshot, plan)) == []
        after = applied(snapshot, plan, seconds=seconds, grace=grace)
        loss = losses[cycle] if cycle < len(losses) else None
        snapshot = aged(snapshot, after if loss is None else with_lost_worker(after, loss))


@given(snapshot=SNAPSHOTS, grace=st.booleans())
def test_plans_with_broken_gangs_make_no_more_decisions_after_a_few_cycles(
    snapshot: Snapshot, grace: bool
) -> None:
    plans = 3 + grace  # a gang stopped while incomplete starts whole a cycle later
    for cycle in range(CYCLES):
        plan = decide(snapshot)
        note(f"cycle {cycle}")
        for decision in plan.decisions:
            note(str(decision))
        if cycle >= plans:
            assert not [
                d for d in plan.decisions if isinstance(d, Stop | Move | Resize | Reserve | Start)
            ]
        snapshot = aged(snapshot, applied(snapshot, plan, seconds=0, grace=grace))


@given(SNAPSHOTS)
def test_broken_gangs_overbook_no_device_or_node(snapshot: Snapshot) -> None:
    effects = PlanEffects(snapshot, decide(snapshot))

    assert overbooked(effects.now(), effects.nodes) == []
    assert overbooked(effects.later(), effects.nodes) == []


@given(SNAPSHOTS)
def test_gang_below_its_minimum_of_workers_has_exactly_one_wait_decision(
    snapshot: Snapshot,
) -> None:
    plan = decide(snapshot)
    starts = {d.worker for d in plan.decisions if isinstance(d, Start)}
    expected = {
        gang.name
        for gang in snapshot.workloads
        if any(k.state in {WorkerState.PENDING, WorkerState.RESERVED} for k in gang.workers)
        and sum(k.state is WorkerState.RUNNING or k.name in starts for k in gang.workers)
        < gang.minimum
    }

    wait_counts = Counter(d.workload for d in plan.decisions if isinstance(d, Wait))
    assert wait_counts == Counter(expected)


# ---- one by one


def gang(workers: str, **fields: Any) -> Workload:
    """Make a job; its workers run ("n1:0"), wait ("-"), or are "reserved@" or "stopping@"."""
    gang_workers = []
    for index, word in enumerate(workers.split()):
        state, _, place = word.rpartition("@")
        on = None if place == "-" else place
        (worker,) = job("gang", 1, on=on, state=state or "running").workers
        gang_workers.append(replace(worker, name=f"gang-{index}"))
    return replace(job("gang", **fields), workers=tuple(gang_workers))


def unreserved(plan: Plan) -> set[str]:
    return {d.worker for d in plan.decisions if isinstance(d, Unreserve)}


TWO_PROJECTS = [project("a", 1), project("b", 3)]
ONE_PROJECT = [project("a", 4)]
STOP_CAUSES: dict[str, tuple[list[Project], Workload, dict[str, Any]]] = {
    "claim of another project within its quota": (TWO_PROJECTS, job("claim", 1, "b"), {}),
    "session of its project": (ONE_PROJECT, session("ann-claim"), {}),
    "job of higher priority": (ONE_PROJECT, job("claim", priority=90), {}),
    "end of its grace period": (ONE_PROJECT, job("claim", 4), {"below_min_since": 900}),
}


@pytest.mark.parametrize(("owners", "claim", "fields"), STOP_CAUSES.values(), ids=STOP_CAUSES)
@pytest.mark.parametrize(
    ("workers", "minimum"),
    [("n1:0 n1:1 -", 3), ("- n1:1 n1:0", 3), ("n1:0 n1:1 - -", 3)],
    ids=["last worker lost", "first worker lost", "elastic"],
)
@pytest.mark.parametrize("grace", [False, True], ids=["immediate exit", "with a grace period"])
def test_gang_stopped_while_incomplete_waits_whole(
    owners: list[Project],
    claim: Workload,
    fields: dict[str, Any],
    workers: str,
    minimum: int,
    *,
    grace: bool,
) -> None:
    # The GPUs left by the claim suffice for some of the gang's workers, and never for all.
    existing = [job(f"there-{n}", 1, owners[-1].name, priority=95, on=f"n1:{n}") for n in (2, 3)]
    incomplete_gang = gang(workers, min_workers=minimum, **fields)
    cluster_snapshot = snapshot("1x4", owners, [incomplete_gang, *existing, claim])
    runs = {k.name for k in incomplete_gang.workers if k.state is WorkerState.RUNNING}

    plan = decide(cluster_snapshot)

    assert stopped(plan) == runs
    assert waits(plan)["gang"] == "stopping"
    for _ in range(5):
        cluster_snapshot = applied(cluster_snapshot, plan, grace=grace)
        plan = decide(cluster_snapshot)
        assert not any(name.startswith("gang") for name in (*started(plan), *reserved(plan)))
    # Two more GPUs are idle now, enough for the gang's minimum of three workers.
    cluster_snapshot = without_workloads(cluster_snapshot, "there-2", "there-3")
    assert {"gang-0", "gang-1", "gang-2"} <= started(decide(cluster_snapshot))


# A worker "n1:0" runs there, and "-" is pending. The expected numbers are indexes of workers.
@pytest.mark.parametrize(
    ("workers", "devices", "fields", "expected"),
    [
        ("reserved@n1:0 reserved@n1:1 -", 2, {}, {"unreserved": {0, 1}}),
        ("reserved@n1:0 reserved@n1:1 -", 3, {}, {"started": {0, 1, 2}}),
        ("reserved@n1:0 reserved@n1:1 -", 2, {"min_workers": 2}, {"started": {0, 1}}),
        ("n1:0 n1:1 reserved@n1:2", 3, {}, {"started": {2}}),
        ("n1:0 reserved@n1:1 -", 2, {}, {"unreserved": {1}}),
        ("n1:0 reserved@n1:1 -", 3, {}, {"started": {1, 2}}),
        ("stopping@n1:0 reserved@n1:1", 2, {}, {}),
        ("n1:0 reserved@n1:1 stopping@n1:2", 3, {}, {}),
        (
            "n1:0 reserved@n1:1 stopping@n1:2",
            3,
            {"below_min_since": 900},
            {"stopped": {0}, "unreserved": {1}},
        ),
        (
            "n1:0 reserved@n1:1 stopping@n1:2 - -",
            5,
            {"min_workers": 3},
            {"reserved": {3}},
        ),
    ],
    ids=[
        "third worker lost its place: the others lose theirs",
        "third worker lost its place and finds a new one",
        "minimum has places",
        "last missing worker has a place",
        "one of two missing workers has a place",
        "one of two missing workers has a place, the other finds one",
        "stopping worker will need a place again",
        "stopping worker may complete the gang later",
        "grace period over while a worker stops",
        "second missing worker finds a place beside the reserved one",
    ],
)
def test_gang_reservation_starts_whole_or_ends(
    workers: str, devices: int, fields: dict[str, Any], expected: dict[str, set[int]]
) -> None:
    plan = decide(snapshot(f"1x{devices}", [project("a", 5)], [gang(workers, **fields)]))

    workers_by_action = {
        "started": started(plan),
        "reserved": reserved(plan),
        "stopped": stopped(plan),
        "unreserved": unreserved(plan),
    }
    assert {action: names for action, names in workers_by_action.items() if names} == {
        action: {f"gang-{index}" for index in indexes} for action, indexes in expected.items()
    }


def with_last_request(gpus: float, incomplete_gang: Workload) -> Workload:
    """Return the gang with `gpus` as the request of its last worker."""
    *first_workers, last = incomplete_gang.workers
    return replace(incomplete_gang, workers=(*first_workers, replace(last, gpus=milli_gpus(gpus))))


def test_no_plan_moves_a_part_of_a_gang() -> None:
    # The last worker of the gang fits on no node. A move of one worker would make room for "new".
    incomplete_gang = with_last_request(4, gang("n1:0 n2:0 -"))
    cluster_snapshot = snapshot(
        "2x2", [project("a", 9)], [incomplete_gang, job("new", 2)], phases=EVERY_PHASE
    )

    assert moved(decide(cluster_snapshot)) == set()


@pytest.mark.parametrize(
    "below_min_since", [990, 900], ids=["within its grace period", "after its grace period"]
)
def test_gang_moves_its_workers_to_make_room_for_a_missing_worker(below_min_since: int) -> None:
    incomplete_gang = with_last_request(2, gang("n1:0 n2:0 -", below_min_since=below_min_since))
    plan = decide(snapshot("2x2", [project("a", 9)], [incomplete_gang], phases=EVERY_PHASE))

    assert len(moved(plan)) == 1
    assert reserved(plan) == {"gang-2"}
    assert stopped(plan) == set()
    assert waits(plan) == {"gang": "stopping"}


def test_reserved_surplus_worker_is_dropped_before_a_running_surplus_worker_stops() -> None:
    stopping_job = job("leaves", on="n1:0", state="stopping")
    elastic = gang("reserved@n1:0 n1:1 n1:2", min_workers=2)
    plan = decide(snapshot("1x3", [project("a", 3)], [stopping_job, elastic, job("new")]))

    assert stopped(plan) == set()
    assert unreserved(plan) == {"gang-0"}
    assert reserved(plan) == {"new-0"}
