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
    without,
)
from gang_worlds import is_short, lost, troubled
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
from world import World, overbooked

CYCLES = 10
WORLDS = troubled()


def parts(world: Snapshot, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each gang that a plan starts, stops, moves, holds or leaves in part."""
    decided = {d.worker: d for d in plan.decisions if not isinstance(d, Wait)}
    stops_stale = "stop_stale_gangs" in world.policy.phases
    for gang in world.workloads:
        fates = Counter(_fate(worker, decided.get(worker.name)) for worker in gang.workers)
        runs, starts, moves = fates["runs"], fates["starts"], fates["moves"]
        held = runs + starts + moves + fates["reserves"] + fates["kept"]
        comes = held + fates["stopping"]
        told = f"{gang.name}, at least {gang.minimum}: {dict(fates)}"
        if starts and runs + starts + moves < gang.minimum:
            yield f"a part starts of {told}"
        if fates["stops"] and held and runs + starts + moves < gang.minimum:
            yield f"a part stops of {told}"
        if 0 < held < gang.minimum:
            if starts or moves or fates["reserves"] or fates["stops"]:
                yield f"a part is left of {told}"
            if fates["kept"] and comes < gang.minimum:
                yield f"a part is held of {told}"
            if stops_stale and gang.kind == "job" and _is_overdue(gang, world.now):
                yield f"a part stays after its grace of {told}"


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


def aged(before: Snapshot, after: Snapshot) -> Snapshot:
    """Set since when each gang lacks workers, as a cluster does."""
    return replace(
        after,
        workloads=tuple(
            replace(w, below_min_since=(w.below_min_since or before.now) if is_short(w) else None)
            for w in after.workloads
        ),
    )


def hit(world: Snapshot, blow: int) -> Snapshot:
    """Lose one running worker, chosen by a number."""
    names = [k.name for w in world.workloads for k in w.workers if k.state is WorkerState.RUNNING]
    name = names[blow % len(names)] if names else ""
    return replace(
        world,
        workloads=tuple(
            replace(w, workers=tuple(lost(k) if k.name == name else k for k in w.workers))
            for w in world.workloads
        ),
    )


# ---- always


@given(
    world=WORLDS,
    blows=st.lists(st.none() | st.integers(0, 20), max_size=4),
    seconds=st.sampled_from([10, 61]),
    grace=st.booleans(),
)
def test_a_gang_has_all_its_minimum_or_waits_whole(
    world: Snapshot, blows: list[int | None], seconds: int, grace: bool
) -> None:
    for cycle in range(CYCLES):
        plan = decide(world)
        note(f"cycle {cycle} at {world.now}")
        for decision in plan.decisions:
            note(str(decision))
        assert list(parts(world, plan)) == []
        after = applied(world, plan, seconds=seconds, grace=grace)
        blow = blows[cycle] if cycle < len(blows) else None
        world = aged(world, after if blow is None else hit(after, blow))


@given(world=WORLDS, grace=st.booleans())
def test_worlds_with_broken_gangs_come_to_rest(world: Snapshot, grace: bool) -> None:
    plans = 3 + grace  # a gang stopped while incomplete starts whole a cycle later
    for cycle in range(CYCLES):
        plan = decide(world)
        note(f"cycle {cycle}")
        for decision in plan.decisions:
            note(str(decision))
        if cycle >= plans:
            assert not [
                d for d in plan.decisions if isinstance(d, Stop | Move | Resize | Reserve | Start)
            ]
        world = aged(world, applied(world, plan, seconds=0, grace=grace))


@given(WORLDS)
def test_broken_gangs_overbook_nothing(snapshot: Snapshot) -> None:
    world = World(snapshot, decide(snapshot))

    assert overbooked(world.now(), world.nodes) == []
    assert overbooked(world.later(), world.nodes) == []


@given(WORLDS)
def test_a_workload_that_lacks_workers_hears_why_it_waits(snapshot: Snapshot) -> None:
    plan = decide(snapshot)
    starts = {d.worker for d in plan.decisions if isinstance(d, Start)}
    expected = {
        gang.name
        for gang in snapshot.workloads
        if any(k.state in {WorkerState.PENDING, WorkerState.RESERVED} for k in gang.workers)
        and sum(k.state is WorkerState.RUNNING or k.name in starts for k in gang.workers)
        < gang.minimum
    }

    heard = Counter(d.workload for d in plan.decisions if isinstance(d, Wait))
    assert heard == Counter(expected)


# ---- one by one


def gang(workers: str, **fields: Any) -> Workload:
    """Make a job; its workers run ("n1:0"), wait ("-"), or are "reserved@" or "stopping@"."""
    made = []
    for index, word in enumerate(workers.split()):
        state, _, place = word.rpartition("@")
        on = None if place == "-" else place
        (worker,) = job("gang", 1, on=on, state=state or "running").workers
        made.append(replace(worker, name=f"gang-{index}"))
    return replace(job("gang", **fields), workers=tuple(made))


def unreserved(plan: Plan) -> set[str]:
    return {d.worker for d in plan.decisions if isinstance(d, Unreserve)}


FOR_ANOTHER = [project("a", 1), project("b", 3)]
AT_HOME = [project("a", 4)]
WAYS: dict[str, tuple[list[Project], Workload, dict[str, Any]]] = {
    "for another project's quota": (FOR_ANOTHER, job("claim", 1, "b"), {}),
    "for a session of its project": (AT_HOME, session("ann-claim"), {}),
    "for a job that goes before it": (AT_HOME, job("claim", priority=90), {}),
    "for nobody, when its grace is over": (AT_HOME, job("claim", 4), {"below_min_since": 900}),
}


@pytest.mark.parametrize(("owners", "claim", "fields"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("workers", "minimum"),
    [("n1:0 n1:1 -", 3), ("- n1:1 n1:0", 3), ("n1:0 n1:1 - -", 3)],
    ids=["last lost", "first lost", "elastic"],
)
@pytest.mark.parametrize("grace", [False, True], ids=["gone at once", "with a grace period"])
def test_a_gang_stopped_while_incomplete_waits_whole(
    owners: list[Project],
    claim: Workload,
    fields: dict[str, Any],
    workers: str,
    minimum: int,
    *,
    grace: bool,
) -> None:
    # The GPUs left by the claim suffice for some of the gang's workers, and never for all.
    there = [job(f"there-{n}", 1, owners[-1].name, priority=95, on=f"n1:{n}") for n in (2, 3)]
    lacking = gang(workers, min_workers=minimum, **fields)
    world = snapshot("1x4", owners, [lacking, *there, claim])
    runs = {k.name for k in lacking.workers if k.state is WorkerState.RUNNING}

    plan = decide(world)

    assert (stopped(plan), waits(plan)["gang"]) == (runs, "stopping")
    for _ in range(5):
        world = applied(world, plan, grace=grace)
        plan = decide(world)
        assert not any(name.startswith("gang") for name in (*started(plan), *reserved(plan)))
    world = without(world, "there-2", "there-3")
    assert {"gang-0", "gang-1", "gang-2"} <= started(decide(world))


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
        "one has lost its place: neither of the others keeps its own",
        "one has lost its place and finds another",
        "a minimum has places",
        "the last has a place",
        "of two that lack workers one has a place",
        "of two that lack workers one has a place, the other finds one",
        "one will want to start when it has stopped",
        "one may be whole again when another has stopped",
        "the grace is over, whoever stops",
        "another finds a place, and both will start together",
    ],
)
def test_a_reservation_for_a_gang_starts_whole_or_ends(
    workers: str, devices: int, fields: dict[str, Any], expected: dict[str, set[int]]
) -> None:
    plan = decide(snapshot(f"1x{devices}", [project("a", 5)], [gang(workers, **fields)]))

    found = {
        "started": started(plan),
        "reserved": reserved(plan),
        "stopped": stopped(plan),
        "unreserved": unreserved(plan),
    }
    assert {what: names for what, names in found.items() if names} == {
        what: {f"gang-{index}" for index in indexes} for what, indexes in expected.items()
    }


def needing(gpus: float, lacking: Workload) -> Workload:
    """Return the gang with `gpus` as the request of its last worker."""
    *others, last = lacking.workers
    return replace(lacking, workers=(*others, replace(last, gpus=milli_gpus(gpus))))


def test_no_plan_moves_a_part_of_a_gang() -> None:
    lacking = needing(4, gang("n1:0 n2:0 -"))
    world = snapshot("2x2", [project("a", 9)], [lacking, job("new", 2)], phases=EVERY_PHASE)

    assert moved(decide(world)) == set()


@pytest.mark.parametrize("since", [990, 900], ids=["within its grace", "after it"])
def test_a_gang_moves_its_own_workers_for_the_one_that_it_lacks(since: int) -> None:
    lacking = needing(2, gang("n1:0 n2:0 -", below_min_since=since))
    plan = decide(snapshot("2x2", [project("a", 9)], [lacking], phases=EVERY_PHASE))

    assert (len(moved(plan)), reserved(plan), stopped(plan)) == (1, {"gang-2"}, set())
    assert waits(plan) == {"gang": "stopping"}


def test_surplus_with_only_a_place_goes_before_workers_that_run() -> None:
    leaves = job("leaves", on="n1:0", state="stopping")
    elastic = gang("reserved@n1:0 n1:1 n1:2", min_workers=2)
    plan = decide(snapshot("1x3", [project("a", 3)], [leaves, elastic, job("new")]))

    assert (stopped(plan), unreserved(plan), reserved(plan)) == (set(), {"gang-0"}, {"new-0"})
