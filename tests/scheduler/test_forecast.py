"""Expected starts: exact if run times are known, bounds otherwise (X)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import applied, job, project, session, snapshot
from runai.hub_service.scheduler import (
    ClusterIndex,
    ExpectedStart,
    Move,
    Plan,
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
    forecast,
)
from runai.hub_service.scheduler.explanations.forecast import (
    EXPECTED,
    LONGER,
    SHORTER,
    _Simulation,
    expected_start,
    expected_starts,
)
from strategies import snapshots


def start_of(world: Snapshot, workload: str, *, cycles: int = 200) -> ExpectedStart:
    return expected_start(world, workload, decide, cycles=cycles)


@given(snapshots(most=6), st.randoms(use_true_random=False))
def test_with_known_run_times_the_expected_start_is_the_real_one(world, random) -> None:
    def known(workload: Workload) -> Workload:
        ran = max((world.now - k.started for k in workload.workers if k.started), default=0)
        ends = ran + random.randint(1, 8)
        return replace(workload, expected_runtime=ends, max_runtime=None)

    world = replace(world, workloads=tuple(known(workload) for workload in world.workloads))
    real = replayed(world, until=world.now + 60)
    for wait in decide(world).decisions:
        if isinstance(wait, Wait):
            start = start_of(world, wait.workload)

            assert (start.at, start.is_estimated) == (real.get(wait.workload), False)
            assert (start.earliest, start.latest) == (start.at, start.at)


@given(snapshots(most=6))
def test_all_are_told_what_each_is_told_alone(world) -> None:
    waiting = {d.workload for d in decide(world).decisions if isinstance(d, Wait)}
    together = expected_starts(world, sorted(waiting), decide, cycles=20)

    assert together == {name: start_of(world, name, cycles=20) for name in waiting}


@given(snapshots(most=6))
def test_each_course_of_events_begins_with_what_is(world) -> None:
    """The simulated futures share one index, one after the other."""
    waiting = sorted({d.workload for d in decide(world).decisions if isinstance(d, Wait)})
    silent = replace(world, policy=replace(world.policy, explain="none"))
    index = ClusterIndex(silent)

    for factor in (LONGER, SHORTER, EXPECTED, LONGER):
        played = _Simulation(index, silent, decide, factor).starts_of(waiting, 20)

        assert played == _Simulation(ClusterIndex(silent), silent, decide, factor).starts_of(
            waiting, 20
        )


def replayed(world: Snapshot, *, until: int) -> dict[str, int]:
    """Return when each workload first starts, simulated second by second.

    A workload leaves after its run time; a stopped one resumes with the time it has left.
    """
    left = {w.name: w.expected_runtime or 0 for w in world.workloads}
    ends = {
        w.name: min(k.started or 0 for k in w.workers if _is_up(k)) + left[w.name]
        for w in world.workloads
        if _runs(w)
    }
    first: dict[str, int] = {}
    while world.now < until:
        ended = {name for name, end in ends.items() if end <= world.now}
        ends = {name: end for name, end in ends.items() if name not in ended}
        alive = [w for w in world.workloads if w.name not in ended]
        world = replace(world, workloads=tuple(alive))
        for _ in range(8):
            plan = decide(world)
            before = {w.name for w in world.workloads if _runs(w)}
            world = _after(world, plan)
            after = {w.name: w for w in world.workloads if _runs(w)}
            for name in before - after.keys():
                left[name] = ends.pop(name) - world.now
            for name in after.keys() - before:
                ends[name] = world.now + left[name]
            for name, workload in after.items():
                if sum(_is_up(k) for k in workload.workers) >= workload.minimum:
                    first.setdefault(name, world.now)
            if not any(isinstance(d, Stop | Move | Resize | Unreserve) for d in plan.decisions):
                break
        world = replace(world, now=world.now + 1)
    return first


def _after(world: Snapshot, plan: Plan) -> Snapshot:
    """Apply a plan at once; a moved worker continues at its new place."""
    moves = {
        d.worker: Start(workload=d.workload, worker=d.worker, node=d.node, devices=d.devices)
        if isinstance(d, Move)
        else d
        for d in plan.decisions
        if not isinstance(d, Wait)
    }
    return applied(world, replace(plan, decisions=tuple(moves.values())), seconds=0)


def _is_up(worker: Worker) -> bool:
    return worker.state is WorkerState.RUNNING


def _runs(workload: Workload) -> bool:
    return any(_is_up(worker) for worker in workload.workers)


# ---- estimates for run times that are not stated


def held_for(seconds: int, **fields: Any) -> Workload:
    return job("old", on="n1:0", started=1000 - seconds, **fields)


def one_gpu(*workloads: Workload, **policy: Any) -> Snapshot:
    return snapshot("1x1", [project("a", 1)], workloads, **policy)


def test_half_of_what_has_run_for_long_runs_as_long_again() -> None:
    start = start_of(one_gpu(held_for(300), job("new")), "new")

    assert (start.earliest, start.at, start.latest) == (1100, 1300, 1900)
    assert start.is_estimated


def test_forecast_assumes_one_minute_for_a_job_that_has_just_started() -> None:
    start = start_of(one_gpu(held_for(0), job("new")), "new")

    assert (start.earliest, start.at, start.latest) == (1020, 1060, 1180)


def test_a_stated_run_time_that_is_over_is_an_estimate_again() -> None:
    stated = start_of(one_gpu(held_for(300, expected_runtime=301), job("new")), "new")
    over = start_of(one_gpu(held_for(300, expected_runtime=300), job("new")), "new")

    assert (stated.at, stated.is_estimated) == (1001, False)
    assert (over.at, over.is_estimated) == (1300, True)


def test_forecast_assumes_the_typical_run_time_for_jobs_ahead_in_the_queue() -> None:
    start = start_of(one_gpu(held_for(300), job("next"), job("new")), "new")

    assert start.at == 1300 + 600


def test_start_that_depends_on_an_unknown_end_has_no_forecast() -> None:
    start = start_of(one_gpu(job("old", on="n1:0"), job("new")), "new")

    assert (start.at, start.earliest, start.latest) == (None, None, None)


def test_start_beyond_the_simulated_cycles_has_only_a_lower_bound() -> None:
    world = one_gpu(
        held_for(10, expected_runtime=20),
        *[job(f"next-{i}", expected_runtime=10) for i in range(9)],
        job("new"),
    )

    start = start_of(world, "new", cycles=3)

    assert (start.at, start.earliest, start.latest) == (None, 1030, None)
    assert start.text == "not within 30 seconds, where the forecast ends"
    assert start_of(world, "new").at == 1100


def test_forecast_covers_all_waiting_workloads_or_only_the_requested_ones() -> None:
    world = one_gpu(
        held_for(10, expected_runtime=20),
        *[job(f"next-{i}", expected_runtime=10) for i in range(30)],
    )
    plan = decide(world)

    every, some = forecast(world, plan), forecast(world, plan, {"next-2", "next-29", "old"})

    assert {name: start.at for name, start in every.items()} == {
        f"next-{i}": 1010 + 10 * i for i in range(30)
    }
    assert {name: start.at for name, start in some.items()} == {"next-2": 1030, "next-29": None}
    assert forecast(world, plan, {"old"}) == {}


def test_stopping_job_frees_its_gpu_at_the_end_of_its_grace() -> None:
    world = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [
            job("old", on="n1:0", state="stopping", gone_by=1025),
            job("new", 1, "b", on="n1:0", state="reserved"),
        ],
    )

    assert start_of(world, "new").at == 1025


def test_a_protected_victim_is_taken_when_its_time_is_over() -> None:
    world = snapshot(
        "1x1",
        [project("a", 0, min_runtime=100), project("b", 1)],
        [held_for(40, expected_runtime=1000), job("new", 1, "b")],
    )

    assert start_of(world, "new").at == 960 + 100


def test_a_victim_that_was_all_but_done_needs_its_last_second() -> None:
    world = snapshot(
        "1x1",
        [project("a", 1), project("b", 0)],
        [
            job("old", 1, "b", on="n1:0", started=990, expected_runtime=11),
            job("owed", 1, "a", expected_runtime=10),
            job("later", 1, "b"),
        ],
    )

    assert start_of(world, "later").at == 1010 + 1


def test_a_broken_gang_leaves_when_its_grace_is_over() -> None:
    world = snapshot(
        "1x2",
        [project("a", 2)],
        [
            job("gang", 1, workers=3, on="n1:0", below_min_since=970, grace=60),
            session("ana-1", 2),
        ],
        phases=("allocate", "stop_stale_gangs"),
    )

    assert start_of(world, "ana-1").at == 970 + 61


def test_a_session_that_gives_way_ends_and_does_not_come_back() -> None:
    world = snapshot(
        "1x1",
        [project("a", 0, min_runtime=100), project("b", 1)],
        [
            session("eve-1", 1, on="n1:0", preemptible=True, started=960, expected_runtime=5000),
            job("owed", 1, "b", expected_runtime=10),
            job("later", 1),
        ],
    )

    assert start_of(world, "owed").at == 1060
    assert start_of(world, "later").at == 1070


def test_a_job_that_was_paused_often_is_left_alone_until_its_hour_is_over() -> None:
    world = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [
            job("old", on="n1:0", started=990, expected_runtime=9000, pauses=(500,)),
            job("owed", 1, "b"),
        ],
        max_pauses_per_hour=1,
    )

    assert start_of(world, "owed").at == 500 + 3600


def test_typical_run_time_is_the_median_of_running_workloads() -> None:
    world = snapshot(
        "1x4",
        [project("a", 4)],
        [
            job("short", on="n1:0", started=900, expected_runtime=110),
            job("pair", workers=2, on="n1:1 n1:2", started=800, expected_runtime=230),
            job("long", on="n1:3", started=0, expected_runtime=5000),
            job("next", 4, priority=75),
            job("new", 4),
        ],
    )

    assert start_of(world, "new").at == 5000 + 230


def test_a_run_is_as_long_as_from_its_first_worker_on() -> None:
    late = job("pair", workers=2, on="n1:1 n1:2", started=800, expected_runtime=230)
    late = replace(late, workers=(late.workers[0], replace(late.workers[1], started=950)))
    world = snapshot("1x4", [project("a", 4)], [late, job("next", 4, priority=75), job("new", 4)])

    assert start_of(world, "new").at == (800 + 230) + 230


def test_session_stopped_by_the_plan_has_no_expected_start() -> None:
    # One of the two workers of "lab" runs, beyond the quota of a: b reclaims its own GPU, and a
    # session that is stopped ends.
    world = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [session("lab", 1, workers=2, on="n1:0", preemptible=True), job("own", 1, "b")],
    )
    assert {d.workload for d in decide(world).decisions if isinstance(d, Stop)} == {"lab"}

    start = start_of(world, "lab", cycles=1)

    assert (start.at, start.earliest, start.latest) == (None, None, None)
