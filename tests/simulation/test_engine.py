"""Replays small enough to compute by hand: every key of the results, exactly."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Node, Project
from runai.hub_service.simulation.engine import Setting, simulate
from runai.hub_service.simulation.policies import POLICIES
from runai.hub_service.simulation.results import RESULT_KEYS
from runai.hub_service.simulation.traces import TraceRow
from runai.hub_service.wire.errors import InvalidRequest

HOUR = 3600
TWO = {"a": 1, "b": 1}
BOB_AND_PATTY = (("a1", "a", 0, 2, 100), ("b1", "b", 40, 1, 60))


def test_reclaimed_job_without_checkpoints_starts_from_zero(jobs, setting):
    run = simulate(jobs(*BOB_AND_PATTY), "quota", setting(nodes=2, quotas=TWO, since=0, until=200))

    assert tuple(asdict(run.results)) == RESULT_KEYS
    # a1 runs on two GPUs 0-40 and 100-200, b1 on one 40-100: 340 of 400 GPU-seconds.
    assert asdict(run.results) == pytest.approx(
        {
            "allocated_pct": 85,
            "utilized_pct": None,
            "useful_pct": 65,
            "wait_mean_h": 30 / HOUR,
            "wait_p50_h": 0,
            "wait_p99_h": 60 / HOUR,
            "jct_mean_h": 130 / HOUR,
            "jct_p50_h": 60 / HOUR,
            "jct_p99_h": 200 / HOUR,
            "pauses": 1,
            "moves": 0,
            "lost_pct": 20,
            "violation_h": 0,
            "worse_than_alone": 0,
            "jain": 1.5**2 / (2 * (0.5**2 + 1)),
            "jobs": 2,
        }
    )


def test_reclaimed_job_resumes_from_its_checkpoint_and_pays_for_reading_it(jobs, setting):
    rows = jobs(*BOB_AND_PATTY, checkpoint_cost_s=10)

    run = simulate(rows, "quota", setting(nodes=2, quotas=TWO, since=0, until=170))

    # a1 resumes at 100, reads its checkpoint until 110 and runs its other 60 seconds.
    assert run.results.allocated_pct == pytest.approx(100 * (40 * 2 + 60 + 70 * 2) / 340)
    assert run.results.useful_pct == pytest.approx(100 * (40 * 2 + 60 + 60 * 2) / 340)
    assert run.results.jct_p99_h == pytest.approx(170 / HOUR)
    assert (run.results.pauses, run.results.lost_pct) == (1, 0)


@pytest.mark.parametrize(
    ("policy", "allocated", "utilized"),
    [
        # s1 and s2 hold halves of one GPU 0-100, j1 the other 0-100, on two GPUs for 200 s.
        pytest.param("quota", 50, 25 * 0.2 + 25 * 0.6, id="fractions"),
        # s1 and s2 hold a GPU each 0-100, j1 follows 100-200; each does the same work as above.
        pytest.param("static-whole", 75, 25 * 0.2 + 25 * 0.6, id="whole GPUs"),
    ],
)
def test_simulated_utilization_is_the_busy_part_of_the_requested_gpus(
    jobs, setting, policy, allocated, utilized
):
    sessions = jobs(("s1", "a", 0, 0.5, 100), ("s2", "a", 0, 0.5, 100), busy_pct=20.0)
    rows = [*sessions, *jobs(("t1", "a", 1, 1, 100), busy_pct=60.0)]

    run = simulate(rows, policy, setting(gpus=2, quotas={"a": 2}, every=1, since=0, until=201))

    assert run.results.allocated_pct == pytest.approx(allocated * 200 / 201)
    assert run.results.utilized_pct == pytest.approx(utilized * 200 / 201)


def test_simulated_utilization_excludes_the_time_to_read_a_checkpoint(jobs, setting):
    rows = jobs(*BOB_AND_PATTY, checkpoint_cost_s=10, busy_pct=50.0)

    run = simulate(rows, "quota", setting(nodes=2, quotas=TWO, since=0, until=170))

    assert run.results.utilized_pct == pytest.approx(run.results.useful_pct / 2)


def test_simulated_pause_while_reading_a_checkpoint_loses_no_work(jobs, setting):
    rows = jobs(
        ("a1", "a", 0, 2, 100),
        ("b1", "b", 40, 1, 60),
        ("b2", "b", 115, 1, 20),
        checkpoint_cost_s=20,
    )

    run = simulate(rows, "quota", setting(nodes=2, quotas=TWO))

    # a1 runs 0-40, reads its checkpoint 100-115 and again 135-155, runs the rest 155-215.
    assert run.results.pauses == 2
    assert run.results.jct_p99_h == pytest.approx(215 / HOUR)


QUEUE = (("j1", "a", 0, 1, 100), ("j2", "a", 10, 2, 50), ("j3", "b", 20, 1, 30))


@pytest.mark.parametrize(
    ("policy", "waits", "violated"),
    [
        # j2 waits for both GPUs until 100; jobs that skip it run beside j1.
        pytest.param("pool", {"a": 45, "b": 0}, 0, id="skipping"),
        pytest.param("pool-strict", {"a": 45, "b": 130}, 130, id="strict"),
    ],
)
def test_strict_queue_is_the_only_policy_that_blocks_jobs_behind_a_waiting_job(
    jobs, setting, policy, waits, violated
):
    run = simulate(jobs(*QUEUE), policy, setting(gpus=2, quotas=TWO, since=0, until=200))

    assert run.mean_waits == waits
    assert run.results.violation_h == pytest.approx(violated / HOUR)
    assert run.longest_violation_s == violated


def test_quota_violation_ends_with_the_next_decision(jobs, setting):
    # Decisions at 0, 10, 20, 30, 40: a1 ends at 15 and a2 at 35; a job waits each time.
    rows = jobs(("a1", "a", 0, 1, 15), ("a2", "a", 10, 1, 15), ("a3", "a", 30, 1, 15))

    run = simulate(rows, "quota", setting(gpus=1, quotas={"a": 1}, every=10, since=0, until=100))

    assert run.results.violation_h == pytest.approx(10 / HOUR)
    assert run.longest_violation_s == 5


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        # a has three private GPUs, b one: a's small job waits only behind a waiting job.
        pytest.param("static", {"a": 40 / 3, "b": 90}, id="skipping"),
        pytest.param("static-strict", {"a": 270 / 3, "b": 90}, id="strict"),
    ],
)
def test_static_policy_gives_each_project_its_own_queue_and_gpus(jobs, setting, policy, waits):
    rows = jobs(
        ("a1", "a", 0, 2, 50),
        ("a2", "a", 10, 3, 200),
        ("a3", "a", 20, 1, 10),
        ("b1", "b", 0, 1, 200),
        ("b2", "b", 20, 1, 10),
    )

    run = simulate(rows, policy, setting(nodes=4, quotas={"a": 3, "b": 1}))

    assert run.mean_waits == pytest.approx(waits)


def test_static_policy_divides_the_cluster_by_whole_nodes_if_possible(jobs, setting):
    # Five nodes of two GPUs: a has 7 GPUs, three nodes and half of one; b has the rest.
    rows = jobs(("a1", "a", 0, 7, 100), ("b1", "b", 0, 2, 10), ("b2", "b", 0, 1, 10))

    run = simulate(rows, "static", setting(nodes=5, gpus=2, quotas={"a": 7, "b": 3}))

    assert (run.mean_waits, run.never_ran) == ({"b": 0}, 1)


def test_worse_off_than_alone_counts_projects_with_longer_waits(jobs, setting):
    rows = jobs(("a1", "a", 0, 2, 500), ("b1", "b", 10, 1, 100))
    both = setting(nodes=2, quotas=TWO)

    assert simulate(rows, "pool", both).results.worse_than_alone == 1
    assert simulate(rows, "quota", both).results.worse_than_alone == 0


def test_elastic_job_uses_idle_gpus_and_returns_them_without_a_pause(jobs, setting):
    rows = [
        *jobs(("a1", "a", 0, 2, 100), min_workers=1, max_workers=4),
        *jobs(("b1", "b", 20, 2, 100)),
    ]

    run = simulate(rows, "quota", setting(gpus=4, quotas={"a": 2, "b": 2}))

    # Four workers do 3.6 worker-seconds a second: 72 until 20; 128 are left for two workers.
    assert run.results.pauses == 0
    assert run.results.jct_p50_h == pytest.approx(84 / HOUR)


def test_job_larger_than_a_node_is_allocated_whole_nodes(jobs, setting):
    run = simulate(
        jobs(("a1", "a", 0, 3, 100)), "quota", setting(nodes=2, gpus=2, since=0, until=100)
    )

    assert run.results.allocated_pct == pytest.approx(100)


def test_minimum_runtime_protection_ends_without_a_submission_or_a_job_end(jobs, setting):
    rows = jobs(("a1", "a", 0, 2, 1000), ("b1", "b", 10, 1, 50))
    protected = setting(nodes=2, quotas=TWO, project={"min_runtime": 300})

    assert simulate(rows, "quota", protected).mean_waits["b"] == 290


def test_simulated_scheduler_cycles_are_ten_seconds_apart(jobs, setting):
    cycle_times: list[int] = []
    rows = jobs(*((f"j{n}", "a", n, 1, 1000) for n in range(25)))

    simulate(rows, "quota", setting(gpus=25), on_plan=lambda now, _plan: cycle_times.append(now))

    assert cycle_times == [0, 10, 20, 30, *range(1000, 1031, 10)]


def test_job_that_fits_on_no_node_is_reported_as_never_ran(jobs, setting):
    run = simulate(jobs(("a1", "a", 0, 9, 10), ("a2", "a", 0, 1, 10)), "pool-strict", setting())

    assert (run.never_ran, run.results.jobs) == (1, 1)


def test_job_of_an_unknown_project_is_refused(jobs, setting):
    with pytest.raises(InvalidRequest, match="Job x1 belongs to project x"):
        simulate(jobs(("x1", "x", 0, 1, 10)), "quota", setting())


ROWS = st.lists(
    st.builds(
        TraceRow,
        job=st.just(""),
        project=st.sampled_from("ab"),
        submit_s=st.integers(0, 120),
        gpus=st.sampled_from([250, 500, 1000, 2000, 4000]),
        duration_s=st.integers(0, 90),
        checkpoint_cost_s=st.sampled_from([None, 0, 7]),
    ),
    max_size=14,
)


@given(rows=ROWS, policy=st.sampled_from(POLICIES), quota=st.integers(1, 3))
def test_simulation_conserves_gpu_work_and_loses_no_job(rows, policy, quota):
    rows = [replace(row, job=f"j{n:02}") for n, row in enumerate(rows)]
    setting = Setting(
        nodes=[Node(name=f"n{n}", devices=2) for n in range(2)],
        projects=[
            Project(name="a", quota=MilliGpu(1000 * quota)),
            Project(name="b", quota=MilliGpu(1000 * (4 - quota))),
        ],
        since=0,
        until=100_000,
    )

    run = simulate(rows, policy, setting)

    assert run.results.jobs + run.never_ran == len(rows)
    assert 0 < run.results.jain <= 1
    if not policy.startswith("static"):
        assert run.never_ran == 0
        work = sum(row.gpus * row.duration_s for row in rows)
        assert run.results.useful_pct == pytest.approx(100 * work / (4000 * 100_000))
