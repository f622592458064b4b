"""`RUNAI_RESUMED` on Kubernetes: which pods are later starts of their workload."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusters.kubernetes.parsed_objects import a_job, a_pod, elastic_spec
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup, PodGrouping
from runai.hub_service.model.records import WorkloadSpec

FOREIGN_JOB = a_job("exp")
GANG = a_job("gang", workers=2)
SUBMITTED_JOB = replace(
    FOREIGN_JOB, spec=WorkloadSpec("vision", "exp", "ana", "job", ("train",)), starts=(60.0,)
)
ELASTIC_JOB = replace(a_job("big", workers=2), spec=elastic_spec("big", 2), starts=(60.0,))
TWO_OF_TEN = a_job("work", workers=2, completions=10)
SWEEP = replace(TWO_OF_TEN, spec=WorkloadSpec("vision", "work", "ana", "job", ("train",), array=10))
RUNNING: dict[str, Any] = {"node": "gpu-0", "bound": 110.0, "is_up": True}
CRASHED: dict[str, Any] = {"node": "gpu-0", "is_finished": True, "exit_code": 1}


def resumed_by_pod(job: Job, *cycles: tuple[Pod, ...]) -> dict[str, bool]:
    """Return which of the last cycle's waiting pods are marked as resumed."""
    grouping = PodGrouping()
    groups: list[PodGroup] = []
    for pods in cycles:
        groups = grouping.groups(pods, {job.uid: job}, {}, "default", window=lambda _: 10)
    return {pod.name: g.is_resumed for g in groups for pod in g.pods if not pod.node}


def element(name: str, index: int, **fields: Any) -> Pod:
    return a_pod(name, of=TWO_OF_TEN, index=index, array="work", **fields)


@pytest.mark.parametrize("job", [FOREIGN_JOB, SUBMITTED_JOB], ids=["foreign", "submitted"])
@pytest.mark.parametrize(
    "ended",
    [
        {"is_finished": True, "exit_code": 1},
        {"is_finished": True, "exit_code": 137, "is_up": False},
        {"is_finished": True},
        None,
    ],
    ids=["crashed", "killed", "evicted by its node", "deleted"],
)
def test_job_pod_after_a_pod_that_ran_is_marked_as_resumed(job, ended):
    first = a_pod("exp-a", of=job)
    running = replace(first, **RUNNING)
    ended_pods = () if ended is None else (replace(running, **({"is_up": False} | ended)),)

    assert resumed_by_pod(job, (first,)) == {"exp-a": False}
    assert resumed_by_pod(job, (first,), (running,), (*ended_pods, a_pod("exp-b", of=job))) == {
        "exp-b": True
    }


@pytest.mark.parametrize(
    "ended",
    [None, {"is_finished": True}],
    ids=["deleted while it waited", "refused by its node"],
)
def test_job_pod_after_a_pod_that_never_ran_is_not_marked_as_resumed(ended):
    first = a_pod("exp-a", of=FOREIGN_JOB)
    ended_pods = () if ended is None else (replace(first, **ended),)

    assert resumed_by_pod(FOREIGN_JOB, (first,), (*ended_pods, a_pod("exp-b", of=FOREIGN_JOB))) == {
        "exp-b": False
    }


def test_failure_in_the_job_status_marks_the_next_pod_as_resumed():
    job = replace(FOREIGN_JOB, failed=1)

    assert resumed_by_pod(job, (a_pod("exp-b", of=job),)) == {"exp-b": True}


def test_gang_pod_after_a_crashed_pod_is_marked_as_resumed():
    running, crashed = a_pod("gang-0", of=GANG, **RUNNING), a_pod("gang-1", of=GANG, **CRASHED)
    replacement = a_pod("gang-1", of=GANG, uid="uid-again")

    assert resumed_by_pod(GANG, (running, crashed, replacement)) == {"gang-1": True}


def test_gang_pod_that_is_bound_late_is_not_marked_as_resumed():
    assert resumed_by_pod(
        GANG, (a_pod("gang-0", of=GANG, **RUNNING), a_pod("gang-1", of=GANG))
    ) == {"gang-1": False}


def test_worker_that_joins_a_running_elastic_job_is_marked_as_resumed():
    waiting = a_pod("big-1", of=ELASTIC_JOB)

    assert resumed_by_pod(ELASTIC_JOB, (a_pod("big-0", of=ELASTIC_JOB), waiting)) == {
        "big-0": False,
        "big-1": False,
    }
    assert resumed_by_pod(ELASTIC_JOB, (a_pod("big-0", of=ELASTIC_JOB, **RUNNING), waiting)) == {
        "big-1": True
    }


@pytest.mark.parametrize("job", [TWO_OF_TEN, SWEEP], ids=["foreign", "array"])
def test_array_element_pod_is_marked_as_resumed_by_its_own_earlier_pod_only(job):
    pods = (
        element("work-0-a", 0, **CRASHED),
        element("work-0-b", 0, uid="uid-again"),
        element("work-1-a", 1),
    )

    resumed = resumed_by_pod(job, (pods[0],), pods)

    assert (resumed["work-0-b"], resumed["work-1-a"]) == (True, False)
