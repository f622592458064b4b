"""Running time of Jobs and pods, as their pods and the notes of stops show it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusters.kubernetes.parsed_objects import a_job, a_pod
from runai.hub_service.clusters.kubernetes.objects.array_elements import ArrayJob
from runai.hub_service.clusters.kubernetes.objects.core_objects import Owner, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job, Ran, ran_noted, ran_text
from runai.hub_service.clusters.kubernetes.objects.run_time import bound_of, timed
from runai.hub_service.clusters.kubernetes.workloads.array_records import ArrayRecords
from runai.hub_service.clusters.kubernetes.workloads.workload_records import ClusterState
from runai.hub_service.model.records import WorkloadSpec, WorkloadState

LIMIT_S = 1000
GANG = a_job("gang", 2)


def worker(index: int, **fields: Any) -> Pod:
    fields = {"node": "n", "bound": 100.0} | fields
    return a_pod(f"{fields}-{index}", of=GANG, index=index, **fields)


def ended(index: int, bound: float, at: float, **fields: Any) -> Pod:
    return worker(index, bound=bound, ended=at, is_finished=True, exit_code=1, **fields)


def run_time_of(pods: list[Pod], job: Job = GANG) -> Any:
    return timed(pods, {job.uid: job}, lambda _: LIMIT_S).get(job.uid)


@pytest.mark.parametrize(
    ("stop_note", "pods", "ran_s", "since"),
    [  # Ran(seconds, time of the stop), ended(index, time bound, time ended)
        (Ran(), [], 0, None),
        (Ran(), [worker(0), worker(1, bound=103.0)], 0, 100),
        (Ran(), [worker(0, node="", bound=None)], 0, None),
        (Ran(), [ended(0, 100, 150), worker(0, bound=200.0)], 50, 200),
        (Ran(), [ended(0, 100, 150), ended(1, 100, 160)], 60, None),
        (Ran(), [ended(1, 100, 150), worker(0)], 0, 100),
        (Ran(30, 150), [ended(0, 100, 150), worker(0, bound=200.0)], 30, 200),
        (Ran(30, 150), [worker(0)], 30, 150),
        (Ran(30, 150), [worker(0, deleted=180.0)], 30, None),
        (Ran(30, 150), [ended(0, 100, 154, deleted=180.0)], 30, None),
        (Ran(30, 150), [ended(0, 100, 154)], 34, None),
        (Ran(30, 150), [ended(0, 200, 204, deleted=210.0)], 34, None),
    ],
    ids=[
        "no pod",
        "gang bound one by one",
        "waiting pod",
        "failed attempt",
        "failed workers side by side",
        "failed worker of a running gang",
        "attempt that ended before a noted stop",
        "pod that runs on after a noted stop",
        "terminating pod",
        "grace of a stop",
        "pod that outlives a stop",
        "deleted pod of a later run",
    ],
)
def test_workload_running_time_is_summed_from_its_pods_and_stop_annotations(
    stop_note, pods, ran_s, since
) -> None:
    run_time = run_time_of(pods, replace(GANG, ran={0: stop_note}))

    assert (run_time.ran, run_time.since) == (ran_s, since)


def test_workload_times_out_when_the_rest_of_its_time_limit_has_run() -> None:
    run_time = run_time_of([worker(0)], replace(GANG, ran={0: Ran(300, 50)}))

    assert run_time.ends_at == 100 + LIMIT_S - 300  # bound at 100, 300 s before
    assert run_time.seconds_at(150) == 350
    assert bound_of(run_time.numbers, [worker(0)]) == 700


def test_pod_of_a_foreign_controller_has_no_time_limit() -> None:
    lone, owned = a_pod("lab", node="n", bound=1.0), a_pod("web", node="n", bound=1.0)
    owned = replace(owned, owner=Owner("ReplicaSet", "web", "web"))

    assert set(timed([lone, owned], {}, lambda _: LIMIT_S)) == {lone.uid}


def test_workloads_without_a_time_limit_are_omitted_from_time_limit_checks() -> None:
    assert timed([worker(0), a_pod("lab", node="n", bound=1.0)], {}, lambda _: None) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"0":1}', '{"a":[1,2]}', '{"0":[1e999,1]}'])
def test_unreadable_running_time_annotation_is_ignored(text) -> None:
    assert ran_noted({"runai/ran": text}) == {}


def test_running_time_annotation_round_trips() -> None:
    job = replace(GANG, ran={0: Ran(1.5, 2.5)})

    assert ran_noted({"runai/ran": ran_text(job, {0: Ran(7.25, 9.5)})}) == {0: Ran(7.25, 9.5)}
    assert ran_noted({"runai/ran": ran_text(job, {})}) == job.ran


def test_job_with_pods_as_separate_workloads_has_no_time_limit() -> None:
    job = a_job("crowd", 3, is_indexed=False)
    pods = [a_pod("crowd-0", of=job, node="n", bound=1.0)]

    assert timed(pods, {job.uid: job}, lambda _: LIMIT_S) == {}


def test_timed_out_array_element_retains_its_reason_without_its_pod() -> None:
    spec = WorkloadSpec("vision", "sweep", "ana", "job", ("true",), array=2, max_runtime=LIMIT_S)
    sweep = a_job("sweep", 2, spec=spec, failed_indexes=frozenset({1}), timed_out=frozenset({1}))
    cluster_state = ClusterState([], {sweep.uid: sweep}, {}, "vision")
    builder = ArrayRecords()
    builder.begin()
    records = {r.id: r for r in builder.of(ArrayJob(sweep, {}), cluster_state)}

    assert records["vision/sweep-1"].state is WorkloadState.TIMED_OUT
    assert records["vision/sweep-1"].reason is not None
    assert records["vision/sweep-1"].reason.code == "timed_out"
