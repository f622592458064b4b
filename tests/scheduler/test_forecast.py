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


def expected_start_of(snapshot: Snapshot, workload: str, *, cycles: int = 200) -> ExpectedStart:
    return expected_start(snapshot, workload, decide, cycles=cycles)


@given(snapshots(max_workloads=6), st.randoms(use_true_random=False))
def test_expected_start_is_exact_if_run_times_are_known(snapshot, random) -> None:
    def with_known_run_time(workload: Workload) -> Workload:
        ran = max((snapshot.now - k.started for k in workload.workers if k.started), default=0)
        ends = ran + random.randint(1, 8)
        return replace(workload, expected_runtime=ends, max_runtime=None)

    snapshot = replace(
        snapshot, workloads=tuple(with_known_run_time(workload) for workload in snapshot.workloads)
    )
    # Six workloads of at most 8 more seconds each have all started within 60 seconds.
    actual_starts = replayed_starts(snapshot, until=snapshot.now + 60)
    for wait in decide(snapshot).decisions:
        if isinstance(wait, Wait):
            start = expected_start_of(snapshot, wait.workload)

            assert (start.at, start.is_estimated) == (actual_starts.get(wait.workload), False)
            assert (start.earliest, start.latest) == (start.at, start.at)


@given(snapshots(max_workloads=6))
def test_forecast_of_all_workloads_equals_the_forecast_of_each_alone(snapshot) -> None:
    waiting = {d.workload for d in decide(snapshot).decisions if isinstance(d, Wait)}
    together = expected_starts(snapshot, sorted(waiting), decide, cycles=20)

    assert together == {name: expected_start_of(snapshot, name, cycles=20) for name in waiting}


@given(snapshots(max_workloads=6))
def test_forecast_simulations_on_a_shared_index_start_from_the_current_state(snapshot) -> None:
    """The simulations share one index, one after the other."""
    waiting = sorted({d.workload for d in decide(snapshot).decisions if isinstance(d, Wait)})
    without_explanations = replace(snapshot, policy=replace(snapshot.policy, explain="none"))
    index = ClusterIndex(without_explanations)

    for factor in (LONGER, SHORTER, EXPECTED, LONGER):
        simulated_starts = _Simulation(index, without_explanations, decide, factor).starts_of(
            waiting, 20
        )

        assert simulated_starts == _Simulation(
            ClusterIndex(without_explanations), without_explanations, decide, factor
        ).starts_of(waiting, 20)


def replayed_starts(snapshot: Snapshot, *, until: int) -> dict[str, int]:
    """Return when each workload first starts, simulated second by second.

    A workload leaves after its run time; a stopped one resumes with the time it has left.
    """
    remaining = {w.name: w.expected_runtime or 0 for w in snapshot.workloads}
    ends = {
        w.name: min(k.started or 0 for k in w.workers if _is_running(k)) + remaining[w.name]
        for w in snapshot.workloads
        if _has_running_worker(w)
    }
    first: dict[str, int] = {}
    while snapshot.now < until:
        ended = {name for name, end in ends.items() if end <= snapshot.now}
        ends = {name: end for name, end in ends.items() if name not in ended}
        alive = [w for w in snapshot.workloads if w.name not in ended]
        snapshot = replace(snapshot, workloads=tuple(alive))
        for _ in range(8):
            plan = decide(snapshot)
            before = {w.name for w in snapshot.workloads if _has_running_worker(w)}
            snapshot = _applied_at_once(snapshot, plan)
            after = {w.name: w for w in snapshot.workloads if _has_running_worker(w)}
            for name in before - after.keys():
                remaining[name] = ends.pop(name) - snapshot.now
            for name in after.keys() - before:
                ends[name] = snapshot.now + remaining[name]
            for name, workload in after.items():
                if sum(_is_running(k) for k in workload.workers) >= workload.minimum:
                    first.setdefault(name, snapshot.now)
            if not any(isinstance(d, Stop | Move | Resize | Unreserve) for d in plan.decisions):
                break
        snapshot = replace(snapshot, now=snapshot.now + 1)
    return first


def _applied_at_once(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Apply a plan at once; a moved worker continues at its new place."""
    moves = {
        d.worker: Start(workload=d.workload, worker=d.worker, node=d.node, devices=d.devices)
        if isinstance(d, Move)
        else d
        for d in plan.decisions
        if not isinstance(d, Wait)
    }
    return applied(snapshot, replace(plan, decisions=tuple(moves.values())), seconds=0)


def _is_running(worker: Worker) -> bool:
    return worker.state is WorkerState.RUNNING


def _has_running_worker(workload: Workload) -> bool:
    return any(_is_running(worker) for worker in workload.workers)


# ---- estimates for run times that are not stated

NOW = 1000


def job_running_for(seconds: int, **fields: Any) -> Workload:
    return job("old", on="n1:0", started=NOW - seconds, **fields)


def one_gpu_snapshot(*workloads: Workload, **policy: Any) -> Snapshot:
    return snapshot("1x1", [project("a", 1)], workloads, now=NOW, **policy)


def test_forecast_assumes_an_old_job_runs_as_long_again() -> None:
    start = expected_start_of(one_gpu_snapshot(job_running_for(300), job("new")), "new")

    # It has run for 300 s: a third of that, as much and three times that are the estimates.
    assert (start.earliest, start.at, start.latest) == (NOW + 100, NOW + 300, NOW + 900)
    assert start.is_estimated


def test_forecast_assumes_one_minute_for_a_job_that_has_just_started() -> None:
    start = expected_start_of(one_gpu_snapshot(job_running_for(0), job("new")), "new")

    assert (start.earliest, start.at, start.latest) == (NOW + 20, NOW + 60, NOW + 180)


def test_forecast_estimates_again_once_a_stated_run_time_has_passed() -> None:
    stated = expected_start_of(
        one_gpu_snapshot(job_running_for(300, expected_runtime=301), job("new")), "new"
    )
    overdue = expected_start_of(
        one_gpu_snapshot(job_running_for(300, expected_runtime=300), job("new")), "new"
    )

    assert (stated.at, stated.is_estimated) == (NOW + 1, False)
    assert (overdue.at, overdue.is_estimated) == (NOW + 300, True)


def test_forecast_assumes_the_typical_run_time_for_jobs_ahead_in_the_queue() -> None:
    start = expected_start_of(
        one_gpu_snapshot(job_running_for(300), job("next"), job("new")), "new"
    )

    # "old" runs for another 300 s, then "next" for the typical run time of 600 s.
    assert start.at == NOW + 300 + 600


def test_job_start_that_depends_on_an_unknown_job_end_has_no_forecast() -> None:
    # The start of "old" is unknown, too.
    start = expected_start_of(one_gpu_snapshot(job("old", on="n1:0"), job("new")), "new")

    assert (start.at, start.earliest, start.latest) == (None, None, None)


def test_job_start_beyond_the_simulated_cycles_has_only_a_lower_bound() -> None:
    # A job ends every 10 seconds. Three simulated cycles reach 30 seconds ahead.
    snapshot = one_gpu_snapshot(
        job_running_for(10, expected_runtime=20),
        *[job(f"next-{i}", expected_runtime=10) for i in range(9)],
        job("new"),
    )

    start = expected_start_of(snapshot, "new", cycles=3)

    assert (start.at, start.earliest, start.latest) == (None, NOW + 30, None)
    assert start.text == "not within 30 seconds, where the forecast ends"
    assert expected_start_of(snapshot, "new").at == NOW + 100


def test_forecast_covers_all_waiting_workloads_or_only_the_requested_ones() -> None:
    snapshot = one_gpu_snapshot(
        job_running_for(10, expected_runtime=20),
        *[job(f"next-{i}", expected_runtime=10) for i in range(30)],
    )
    plan = decide(snapshot)

    all_starts, requested_starts = (
        forecast(snapshot, plan),
        forecast(snapshot, plan, {"next-2", "next-29", "old"}),
    )

    assert {name: start.at for name, start in all_starts.items()} == {
        f"next-{i}": NOW + 10 + 10 * i for i in range(30)
    }
    # For requested workloads the forecast ends after 12 cycles of 10 seconds.
    assert {name: start.at for name, start in requested_starts.items()} == {
        "next-2": NOW + 30,
        "next-29": None,
    }
    assert forecast(snapshot, plan, {"old"}) == {}


def test_stopping_job_frees_its_gpu_at_the_end_of_its_grace() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [
            job("old", on="n1:0", state="stopping", gone_by=1025),
            job("new", 1, "b", on="n1:0", state="reserved"),
        ],
    )

    assert expected_start_of(cluster_snapshot, "new").at == 1025


def test_protected_victim_is_stopped_when_its_minimum_run_time_ends() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 0, min_runtime=100), project("b", 1)],
        [job_running_for(40, expected_runtime=1000), job("new", 1, "b")],
    )

    assert expected_start_of(cluster_snapshot, "new").at == 960 + 100


def test_paused_victim_resumes_for_its_last_second_of_run_time() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 1), project("b", 0)],
        [
            job("old", 1, "b", on="n1:0", started=990, expected_runtime=11),
            job("owed", 1, "a", expected_runtime=10),
            job("later", 1, "b"),
        ],
    )

    # "owed" runs from 1000 to 1010, and "old" then resumes for one second.
    assert expected_start_of(cluster_snapshot, "later").at == 1010 + 1


def test_broken_gang_frees_its_gpus_in_the_forecast_after_its_grace() -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("a", 2)],
        [
            job("gang", 1, workers=3, on="n1:0", below_min_since=970, grace=60),
            session("ana-1", 2),
        ],
        phases=("allocate", "stop_stale_gangs"),
    )

    # The gang stops in the first second after its grace of 60 s.
    assert expected_start_of(cluster_snapshot, "ana-1").at == 970 + 60 + 1


def test_stopped_session_does_not_restart_in_the_forecast() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 0, min_runtime=100), project("b", 1)],
        [
            session("eve-1", 1, on="n1:0", preemptible=True, started=960, expected_runtime=5000),
            job("owed", 1, "b", expected_runtime=10),
            job("later", 1),
        ],
    )

    # The session is protected for 100 s from its start at 960; then "owed" runs for 10 s.
    assert expected_start_of(cluster_snapshot, "owed").at == 960 + 100
    assert expected_start_of(cluster_snapshot, "later").at == 960 + 100 + 10


def test_forecast_respects_max_pauses_per_hour() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [
            job("old", on="n1:0", started=990, expected_runtime=9000, pauses=(500,)),
            job("owed", 1, "b"),
        ],
        max_pauses_per_hour=1,
    )

    # An hour after its pause at 500 "old" may be paused again.
    assert expected_start_of(cluster_snapshot, "owed").at == 500 + 3600


def test_typical_run_time_is_the_median_of_running_workloads() -> None:
    cluster_snapshot = snapshot(
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

    # "long" ends at 5000; "next" then runs for the median of 110, 230 and 5000 s.
    assert expected_start_of(cluster_snapshot, "new").at == 5000 + 230


def test_typical_run_time_is_measured_from_the_first_started_worker() -> None:
    pair = job("pair", workers=2, on="n1:1 n1:2", started=800, expected_runtime=230)
    pair = replace(pair, workers=(pair.workers[0], replace(pair.workers[1], started=950)))
    cluster_snapshot = snapshot(
        "1x4", [project("a", 4)], [pair, job("next", 4, priority=75), job("new", 4)]
    )

    # "pair" ends at 800 + 230, and "next" then runs for the typical 230 s.
    assert expected_start_of(cluster_snapshot, "new").at == (800 + 230) + 230


def test_session_stopped_by_the_plan_has_no_expected_start() -> None:
    # One of the two workers of "lab" runs, beyond the quota of a: b reclaims its own GPU, and a
    # session that is stopped ends.
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [session("lab", 1, workers=2, on="n1:0", preemptible=True), job("own", 1, "b")],
    )
    assert {d.workload for d in decide(cluster_snapshot).decisions if isinstance(d, Stop)} == {
        "lab"
    }

    start = expected_start_of(cluster_snapshot, "lab", cycles=1)

    assert (start.at, start.earliest, start.latest) == (None, None, None)
