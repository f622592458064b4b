"""Time limits on a real API server: Jobs, elements of arrays, and what was made without us."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusters.kubernetes.test_arrays import Arrays
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

pytestmark = pytest.mark.kubernetes

LIMIT_S = 5000
Eventually = Callable[..., Any]


class Clock:
    """The real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def arrays(lab: Any, kubeconfig: Any, eventually: Eventually) -> Arrays:
    lab.node("gpu-0", gpus=2)
    lab.project("patty", quota=2)
    return Arrays(lab, kubeconfig, eventually)


def scheduler_of(arrays: Arrays, clock: Clock) -> Scheduler:
    arrays.scheduler = Scheduler(arrays.kubeconfig, namespace=arrays.work.name, clock=clock)
    return arrays.scheduler


def submit(arrays: Arrays, **fields: Any) -> None:
    spec = WorkloadSpec("patty", "exp", "patty", "job", ("train",), gpus=MilliGpu(1000))
    spec = replace(spec, image="example/train", max_runtime=LIMIT_S, backoff_limit=3, **fields)
    arrays.scheduler.call(arrays.scheduler.cluster.submit([spec]))


def state(arrays: Arrays, name: str) -> str:
    return str(arrays.workload(name).state)


def test_job_over_its_time_limit_during_a_scheduler_outage_times_out(arrays, clock, eventually):
    with scheduler_of(arrays, clock):
        submit(arrays)
        eventually(lambda: state(arrays, "exp") == "running", what="the workload runs")
    clock.ahead += LIMIT_S

    with scheduler_of(arrays, clock):
        eventually(lambda: state(arrays, "exp") == "timed_out", what="the workload times out")
        record = arrays.workload("exp")

    assert record.ran_s >= LIMIT_S
    conditions = arrays.work.job("patty-exp")["status"]["conditions"]
    assert "PodFailurePolicy" in {c.get("reason") for c in conditions}


def test_suspended_time_of_a_job_does_not_count_toward_its_time_limit(arrays, clock, eventually):
    with scheduler_of(arrays, clock) as running_scheduler:
        submit(arrays)
        eventually(lambda: state(arrays, "exp") == "running", what="the workload runs")
        clock.ahead += 1000  # seconds
        running_scheduler.call(running_scheduler.cluster.suspend("patty/exp", by="patty"))
        eventually(lambda: state(arrays, "exp") == "suspended", what="the workload is suspended")
        ran = arrays.workload("exp").ran_s
        clock.ahead += 3000  # less than is left: the pods' own times do not follow this clock
        running_scheduler.call(running_scheduler.cluster.resume("patty/exp", by="patty"))
        eventually(lambda: state(arrays, "exp") == "running", what="the workload runs again")

        assert 1000 <= ran < LIMIT_S
        assert arrays.workload("exp").ran_s == ran


def test_array_elements_time_out_one_by_one_and_are_not_retried(arrays, clock):
    with scheduler_of(arrays, clock):
        arrays.submit(3, max_runtime=LIMIT_S, backoff_limit=3)
        first = arrays.wait_until_running(0, 1)
        arrays.work.finish(first[0])
        arrays.wait_until_running(1, 2)
        clock.ahead += LIMIT_S
        arrays.wait_until_over()

        assert {n: s.split()[0] for n, s in arrays.states().items()} == {
            "sweep-0": "succeeded",
            "sweep-1": "timed_out",
            "sweep-2": "timed_out",
        }
        assert arrays.workload("sweep-1").reason.code == "timed_out"


@pytest.mark.parametrize("workers", [1, 2], ids=["one pod", "gang"])
def test_kubectl_created_job_times_out_by_its_annotation(arrays, clock, eventually, workers):
    foreign_job = job("plain", project="patty", workers=workers, gang=workers > 1)
    foreign_job["metadata"].setdefault("annotations", {})["runai/max-runtime"] = str(LIMIT_S)
    arrays.work.create(foreign_job)
    name = f"{arrays.work.name}.plain"
    with scheduler_of(arrays, clock):
        eventually(lambda: state(arrays, name) == "running", what="the workload runs")
        clock.ahead += LIMIT_S
        eventually(lambda: state(arrays, name) == "timed_out", what="the workload times out")

        assert arrays.workload(name).spec.max_runtime == LIMIT_S


@pytest.mark.parametrize(
    ("annotations", "project_limits"),
    [
        ({"runai/max-runtime": str(LIMIT_S)}, {}),
        ({}, {"defaultSeconds": LIMIT_S}),
        ({"runai/max-runtime": str(9 * LIMIT_S)}, {"maxSeconds": LIMIT_S}),
    ],
    ids=["own limit", "project's default", "project's maximum"],
)
def test_session_ends_at_its_own_or_its_projects_time_limit(
    lab, arrays, clock, eventually, annotations, project_limits
):
    lab.project("labs", quota=2, sessionTime=project_limits)
    kind = {"runai/kind": "build"}
    arrays.work.create(pod("lab", project="labs", labels=kind, annotations=annotations))
    with scheduler_of(arrays, clock) as running_scheduler:
        eventually(lambda: arrays.work.node_of("lab"), what="the workload runs")
        name = f"labs/{arrays.work.name}.lab"
        assert (
            running_scheduler.call(running_scheduler.cluster.workload(name)).spec.max_runtime
            == LIMIT_S
        )
        clock.ahead += LIMIT_S

        eventually(lambda: "lab" not in pod_names(arrays), what="the session is gone")


def pod_names(arrays: Arrays) -> set[str]:
    return {found["metadata"]["name"] for found in arrays.work.pods()}
