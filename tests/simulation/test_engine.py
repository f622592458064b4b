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

HOUR_S = 3600
ONE_GPU_EACH = {"a": 1, "b": 1}


def test_reclaimed_job_without_checkpoints_starts_from_zero(jobs, setting):
    # (job, project, submit_s, GPUs, duration_s): b1 reclaims one of a1's two GPUs.
    rows = jobs(("a1", "a", 0, 2, 100), ("b1", "b", 40, 1, 60))

    run = simulate(rows, "quota", setting(nodes=2, quotas=ONE_GPU_EACH, since=0, until=200))

    assert tuple(asdict(run.results)) == RESULT_KEYS
    # a1 runs on two GPUs 0-40 and again 100-200, b1 on one 40-100: 340 of 400 GPU-seconds are
    # allocated, 80 of them lost.
    assert asdict(run.results) == pytest.approx(
        {
            "allocated_pct": 85,
            "utilized_pct": None,
            "useful_pct": 65,
            "wait_mean_h": 30 / HOUR_S,
            "wait_p50_h": 0,
            "wait_p99_h": 60 / HOUR_S,
            "jct_mean_h": 130 / HOUR_S,
            "jct_p50_h": 60 / HOUR_S,
            "jct_p99_h": 200 / HOUR_S,
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
    # (job, project, submit_s, GPUs, duration_s): b1 reclaims one of a1's two GPUs.
    rows = jobs(("a1", "a", 0, 2, 100), ("b1", "b", 40, 1, 60), checkpoint_cost_s=10)

    run = simulate(rows, "quota", setting(nodes=2, quotas=ONE_GPU_EACH, since=0, until=170))

    # a1 resumes at 100, reads its checkpoint until 110 and runs its other 60 seconds.
    capacity_gpu_s = 2 * 170
    allocated_gpu_s = 40 * 2 + 60 + 70 * 2
    useful_gpu_s = 40 * 2 + 60 + 60 * 2
    assert run.results.allocated_pct == pytest.approx(100 * allocated_gpu_s / capacity_gpu_s)
    assert run.results.useful_pct == pytest.approx(100 * useful_gpu_s / capacity_gpu_s)
    assert run.results.jct_p99_h == pytest.approx(170 / HOUR_S)
    assert run.results.pauses == 1
    assert run.results.lost_pct == 0


@pytest.mark.parametrize(
    ("policy", "allocated_gpu_s"),
    [
        pytest.param("quota", 100 + 100, id="s1 and s2 share a GPU 0-100, t1 has the other 1-101"),
        pytest.param("static-whole", 3 * 100, id="s1 and s2 have a GPU each 0-100, t1 100-200"),
    ],
)
def test_simulated_utilization_is_the_busy_part_of_the_requested_gpus(
    jobs, setting, policy, allocated_gpu_s
):
    # Rows: job, project, submit_s, GPUs, duration_s.
    sessions = jobs(("s1", "a", 0, 0.5, 100), ("s2", "a", 0, 0.5, 100), busy_pct=20.0)
    rows = [*sessions, *jobs(("t1", "a", 1, 1, 100), busy_pct=60.0)]

    run = simulate(rows, policy, setting(gpus=2, quotas={"a": 2}, every=1, since=0, until=201))

    capacity_gpu_s = 2 * 201
    busy_gpu_s = 2 * 0.5 * 100 * 0.2 + 100 * 0.6  # of the requests, under each policy
    assert run.results.allocated_pct == pytest.approx(100 * allocated_gpu_s / capacity_gpu_s)
    assert run.results.utilized_pct == pytest.approx(100 * busy_gpu_s / capacity_gpu_s)


def test_simulated_utilization_excludes_the_time_to_read_a_checkpoint(jobs, setting):
    # (job, project, submit_s, GPUs, duration_s): a1 pauses for b1, and then reads its checkpoint.
    rows = jobs(("a1", "a", 0, 2, 100), ("b1", "b", 40, 1, 60), checkpoint_cost_s=10, busy_pct=50.0)

    run = simulate(rows, "quota", setting(nodes=2, quotas=ONE_GPU_EACH, since=0, until=170))

    busy_part = 0.5
    assert run.results.utilized_pct == pytest.approx(run.results.useful_pct * busy_part)


def test_simulated_pause_while_reading_a_checkpoint_loses_no_work(jobs, setting):
    # (job, project, submit_s, GPUs, duration_s): a1 pauses for b1 and then for b2.
    rows = jobs(
        ("a1", "a", 0, 2, 100),
        ("b1", "b", 40, 1, 60),
        ("b2", "b", 115, 1, 20),
        checkpoint_cost_s=20,
    )

    run = simulate(rows, "quota", setting(nodes=2, quotas=ONE_GPU_EACH))

    # a1 runs 0-40, reads its checkpoint 100-115 and again 135-155, runs the rest 155-215.
    assert run.results.pauses == 2
    assert run.results.jct_p99_h == pytest.approx(215 / HOUR_S)


@pytest.mark.parametrize(
    ("policy", "mean_wait_of_b_s"),
    [
        pytest.param("pool", 0, id="j3 skips the waiting j2 and runs beside j1"),
        pytest.param("pool-strict", 130, id="j3 waits for the end of j2"),
    ],
)
def test_strict_queue_is_the_only_policy_that_blocks_jobs_behind_a_waiting_job(
    jobs, setting, policy, mean_wait_of_b_s
):
    # (job, project, submit_s, GPUs, duration_s): j2 waits for both GPUs, until j1 ends at 100.
    rows = jobs(("j1", "a", 0, 1, 100), ("j2", "a", 10, 2, 50), ("j3", "b", 20, 1, 30))

    run = simulate(rows, policy, setting(gpus=2, quotas=ONE_GPU_EACH, since=0, until=200))

    assert run.mean_waits == {"a": (0 + 90) / 2, "b": mean_wait_of_b_s}
    # b is within its quota: all of its wait violates it.
    assert run.results.violation_h == pytest.approx(mean_wait_of_b_s / HOUR_S)
    assert run.longest_violation_s == mean_wait_of_b_s


def test_quota_violation_ends_with_the_next_decision(jobs, setting):
    # Rows: job, project, submit_s, GPUs, duration_s.
    rows = jobs(("a1", "a", 0, 1, 15), ("a2", "a", 10, 1, 15), ("a3", "a", 30, 1, 15))

    run = simulate(rows, "quota", setting(gpus=1, quotas={"a": 1}, every=10, since=0, until=100))

    # Decisions are made at 0, 10, 20, ...: after a1's end at 15 and a2's at 35, the next job waits
    # for 5 s although the GPU is free.
    assert run.results.violation_h == pytest.approx(2 * 5 / HOUR_S)
    assert run.longest_violation_s == 5


@pytest.mark.parametrize(
    ("policy", "wait_of_a3_s"),
    [
        pytest.param("static", 0, id="a3 skips the waiting a2 and runs beside a1"),
        pytest.param("static-strict", 230, id="a3 waits for the end of a2"),
    ],
)
def test_static_policy_gives_each_project_its_own_queue_and_gpus(
    jobs, setting, policy, wait_of_a3_s
):
    # (job, project, submit_s, GPUs, duration_s): a2 waits for all three GPUs of a, until 50.
    rows = jobs(
        ("a1", "a", 0, 2, 50),
        ("a2", "a", 10, 3, 200),
        ("a3", "a", 20, 1, 10),
        ("b1", "b", 0, 1, 200),
        ("b2", "b", 20, 1, 10),
    )

    run = simulate(rows, policy, setting(nodes=4, quotas={"a": 3, "b": 1}))

    mean_wait_of_b_s = (0 + 180) / 2  # b has one GPU: b2 waits for b1, even beside idle GPUs of a
    assert run.mean_waits == pytest.approx(
        {"a": (0 + 40 + wait_of_a3_s) / 3, "b": mean_wait_of_b_s}
    )


def test_static_policy_divides_the_cluster_by_whole_nodes_if_possible(jobs, setting):
    # Rows: job, project, submit_s, GPUs, duration_s.
    rows = jobs(("a1", "a", 0, 7, 100), ("b1", "b", 0, 2, 10), ("b2", "b", 0, 1, 10))

    run = simulate(rows, "static", setting(nodes=5, gpus=2, quotas={"a": 7, "b": 3}))

    # a has three nodes and half of a shared one, b the rest. b1 and b2 run at once; a1 never, for
    # a job larger than a node gets whole nodes.
    assert run.mean_waits == {"b": 0}
    assert run.never_ran == 1


def test_worse_off_than_alone_counts_projects_with_longer_waits(jobs, setting):
    # (job, project, submit_s, GPUs, duration_s): alone on its one GPU, b1 would run at once.
    rows = jobs(("a1", "a", 0, 2, 500), ("b1", "b", 10, 1, 100))
    two_nodes = setting(nodes=2, quotas=ONE_GPU_EACH)

    # In a pool without quotas b1 waits for a1; with quotas it reclaims its GPU.
    assert simulate(rows, "pool", two_nodes).results.worse_than_alone == 1
    assert simulate(rows, "quota", two_nodes).results.worse_than_alone == 0


def test_elastic_job_uses_idle_gpus_and_returns_them_without_a_pause(jobs, setting):
    # (job, project, submit_s, GPUs, duration_s): a1 is the elastic one.
    rows = [
        *jobs(("a1", "a", 0, 2, 100), min_workers=1, max_workers=4),
        *jobs(("b1", "b", 20, 2, 100)),
    ]

    run = simulate(rows, "quota", setting(gpus=4, quotas={"a": 2, "b": 2}))

    # Four workers do 3.6 worker-seconds a second: 72 until 20; 128 of the 200 are left for two.
    assert run.results.pauses == 0
    assert run.results.jct_p50_h == pytest.approx((20 + 128 / 2) / HOUR_S)


def test_job_larger_than_a_node_is_allocated_whole_nodes(jobs, setting):
    rows = jobs(("a1", "a", 0, 3, 100))  # requests three GPUs

    run = simulate(rows, "quota", setting(nodes=2, gpus=2, since=0, until=100))

    assert run.results.allocated_pct == pytest.approx(100)  # all four GPUs of both nodes


def test_minimum_runtime_protection_ends_without_a_submission_or_a_job_end(jobs, setting):
    # (job, project, submit_s, GPUs, duration_s): nothing happens between 10 and 1000.
    rows = jobs(("a1", "a", 0, 2, 1000), ("b1", "b", 10, 1, 50))
    protected = setting(nodes=2, quotas=ONE_GPU_EACH, project={"min_runtime": 300})

    assert simulate(rows, "quota", protected).mean_waits["b"] == 300 - 10


def test_simulated_scheduler_cycles_are_ten_seconds_apart(jobs, setting):
    cycle_times: list[int] = []
    # 25 jobs that are submitted in the seconds 0 to 24, and end in the seconds 1000 to 1030.
    rows = jobs(*((f"j{second}", "a", second, 1, 1000) for second in range(25)))

    simulate(rows, "quota", setting(gpus=25), on_plan=lambda now, _plan: cycle_times.append(now))

    assert cycle_times == [0, 10, 20, 30, 1000, 1010, 1020, 1030]


def test_job_that_fits_on_no_node_is_reported_as_never_ran(jobs, setting):
    # (job, project, submit_s, GPUs, duration_s): a1 requests nine GPUs of a cluster with one.
    rows = jobs(("a1", "a", 0, 9, 10), ("a2", "a", 0, 1, 10))

    run = simulate(rows, "pool-strict", setting(nodes=1, gpus=1))

    assert run.never_ran == 1
    assert run.results.jobs == 1


def test_job_of_an_unknown_project_is_refused(jobs, setting):
    rows = jobs(("x1", "x", 0, 1, 10))  # of project x

    with pytest.raises(InvalidRequest, match="Job x1 belongs to project x"):
        simulate(rows, "quota", setting(quotas={"a": 1}))


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
    until_s = 100_000  # long after the last job's end
    setting = Setting(
        nodes=[Node(name=f"n{n}", devices=2) for n in range(2)],
        projects=[
            Project(name="a", quota=MilliGpu(1000 * quota)),
            Project(name="b", quota=MilliGpu(1000 * (4 - quota))),
        ],
        since=0,
        until=until_s,
    )

    run = simulate(rows, policy, setting)

    assert run.results.jobs + run.never_ran == len(rows)
    assert 0 < run.results.jain <= 1
    if not policy.startswith("static"):  # a large job may exceed the project's own static part
        assert run.never_ran == 0
        work_milli_gpu_s = sum(row.gpus * row.duration_s for row in rows)
        capacity_milli_gpu_s = 4000 * until_s
        assert run.results.useful_pct == pytest.approx(
            100 * work_milli_gpu_s / capacity_milli_gpu_s
        )
