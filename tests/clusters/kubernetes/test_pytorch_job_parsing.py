"""Parsing of a PyTorchJob: its workers, its owner, and the worker of each pod."""

from __future__ import annotations

from typing import Any

import pytest

from clusters.kubernetes.parsed_objects import a_pod
from control_plane.kubeflow import pytorch_job
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    PYTORCH_JOB,
    QUEUE_REASON,
    Owner,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    MOVED,
    Job,
    resizing,
    resumed,
    suspend_patch,
    suspended,
    unsuspend_patch,
)
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGrouping
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import adopted, read_pytorch_job


def parse(made: dict[str, Any], **more: Any) -> Job:
    made["metadata"] |= {
        "uid": "uid-job",
        "namespace": "lab",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **more.pop("metadata", {}),
    }
    return read_pytorch_job({**made, **more})


def pod_of(job: Job, role: str, number: int, **fields: Any) -> Pod:
    owner = Owner(PYTORCH_JOB, job.name, job.uid)
    name = f"{job.name}-{role}-{number}"
    return a_pod(name, owner=owner, role=role, index=number, project="", **fields)


@pytest.mark.parametrize(
    ("fields", "workers"),
    [
        pytest.param({"workers": 2}, ["t-master-0", "t-worker-0", "t-worker-1"], id="a master"),
        pytest.param(
            {"workers": 2, "master_gpus": None}, ["t-worker-0", "t-worker-1"], id="no master"
        ),
    ],
)
def test_pytorch_job_workers_begin_with_the_master(fields, workers):
    job = parse(pytorch_job("t", **fields))

    assert [job.worker(i).name for i in range(job.completions)] == workers
    assert job.minimum == len(workers)
    assert job.is_whole


@pytest.mark.parametrize(
    ("fields", "min_workers"),
    [
        pytest.param({"master_gpus": None}, 1, id="elastic"),
        pytest.param({"master_gpus": None, "restarts": "ExitCode"}, 1, id="restarted by exit code"),
        pytest.param({}, 4, id="with a master"),
        pytest.param({"master_gpus": None, "restarts": "Never"}, 3, id="never restarted"),
        pytest.param({"master_gpus": None, "min_replicas": 3}, 3, id="minimum of all workers"),
        pytest.param({"master_gpus": None, "min_replicas": 5}, 3, id="minimum too large"),
        pytest.param({"master_gpus": None, "min_replicas": None}, 3, id="no minimum"),
    ],
)
def test_elastic_pytorch_job_needs_the_minimum_of_its_policy(fields, min_workers):
    policy = {"minReplicas": fields.pop("min_replicas", 1), "maxReplicas": 4}
    manifest = pytorch_job("t", workers=3, labels={"elastic": "true"}, **fields)
    manifest["spec"]["elasticPolicy"] = policy
    job = parse(manifest)

    assert job.minimum == min_workers
    is_elastic = min_workers < job.completions
    assert ["elasticPolicy" in pod.remark for pod in job.templates] == (
        [not is_elastic] * job.completions
    )


def test_pytorch_job_template_takes_the_largest_request_and_workers_keep_theirs():
    job = parse(pytorch_job("t", workers=1, master_gpus=0))

    assert job.template.gpus == 1
    assert [job.worker(i).gpus for i in range(2)] == [0, 1]


@pytest.mark.parametrize(
    ("job_labels", "pod_labels", "project"),
    [
        pytest.param({"project": "a"}, {}, "a", id="the job's label"),
        pytest.param({"project": "a"}, {"project": "b"}, "b", id="both labels"),
        pytest.param({}, {"runai/project": "b"}, "b", id="the template's label"),
    ],
)
def test_template_label_overrides_the_project_label_of_a_pytorch_job(
    job_labels, pod_labels, project
):
    job = parse(pytorch_job("t", workers=1, labels=pod_labels), metadata={"labels": job_labels})

    (group,) = PodGrouping().groups(
        adopted([pod_of(job, "master", 0), pod_of(job, "worker", 0)], {job.uid: job}),
        {job.uid: job},
        {},
        "default",
    )

    assert (group.project, group.minimum, len(group.pods)) == (project, 2, 2)


def test_resource_amounts_of_a_pytorch_job_are_read_from_numbers_too():
    manifest = pytorch_job("t", workers=1)
    for role in manifest["spec"]["pytorchReplicaSpecs"].values():
        limits = {"nvidia.com/gpu": 2, "cpu": 3}  # a custom resource is stored as it was written
        role["template"]["spec"]["containers"][0]["resources"] = {"limits": limits}

    job = parse(manifest)

    assert (job.template.gpus, job.template.cpu_milli) == (2, 3000)


def test_pytorch_pods_are_numbered_by_rank():
    with_master = parse(pytorch_job("t", workers=2))
    without = parse(pytorch_job("t", workers=2, master_gpus=None))

    def ranks(job: Job, *roles: tuple[str, int]) -> list[int | None]:
        return [p.index for p in adopted([pod_of(job, *role) for role in roles], {job.uid: job})]

    assert ranks(with_master, ("master", 0), ("worker", 0), ("worker", 1)) == [0, 1, 2]
    assert ranks(without, ("worker", 0), ("worker", 1)) == [0, 1]
    assert ranks(without, ("worker", 7)) == [None]  # the job has shrunk


def test_pytorch_job_is_suspended_and_resumed_by_its_run_policy():
    job = parse(pytorch_job("t", workers=1))
    assert {"op": "add", "path": "/spec/runPolicy", "value": {}} in suspend_patch(
        job, now=1.0, why="w", priority=50
    )
    waiting = parse(
        pytorch_job("t", workers=1, suspend=True), metadata={"annotations": {QUEUE_REASON: "w"}}
    )

    steps = unsuspend_patch(waiting, now=2.0)

    assert waiting.is_queued
    assert steps[-1] == {"op": "add", "path": "/spec/runPolicy/suspend", "value": False}
    assert {"op": "test", "path": "/spec/runPolicy/suspend", "value": True} in steps
    assert suspended(job, "ana")["spec"] == {"runPolicy": {"suspend": True}}
    assert resumed(waiting)["spec"] == {"runPolicy": {"suspend": True}}  # it waits in the queue


def test_waiting_pytorch_job_is_clearing_until_its_earlier_pods_are_deleted():
    waiting = parse(
        pytorch_job("t", workers=1, suspend=True), metadata={"annotations": {QUEUE_REASON: "w"}}
    )
    ended = pod_of(waiting, "worker", 0, is_finished=True, deleted=9.0, node="gpu-0")

    def is_clearing(*pods: Pod) -> bool:
        (found,) = PodGrouping().groups(pods, {waiting.uid: waiting}, {}, "default")
        return found.is_clearing

    assert is_clearing(ended)
    assert not is_clearing()


@pytest.mark.parametrize(
    ("conditions", "outcome"),
    [
        pytest.param([("Running", "True")], "", id="running"),
        pytest.param([("Running", "False"), ("Succeeded", "True")], "Complete", id="succeeded"),
        pytest.param([("Failed", "True")], "Failed", id="failed"),
        pytest.param([("Failed", "False")], "", id="not failed"),
    ],
)
def test_outcome_of_a_pytorch_job_is_its_operators_condition(conditions, outcome):
    at = "2026-01-01T00:00:00Z"
    status_conditions = [{"type": t, "status": s, "lastTransitionTime": at} for t, s in conditions]

    job = parse(pytorch_job("t", workers=1), status={"conditions": status_conditions})

    assert job.outcome == outcome


def test_finished_pytorch_job_workers_are_needed_again_only_after_a_pause():
    status = {"replicaStatuses": {"Worker": {"succeeded": 1}, "Master": {"active": 1}}}

    runs = parse(pytorch_job("t", workers=1), status=status)
    paused = parse(pytorch_job("t", workers=1, suspend=True), status=status)

    assert (runs.minimum, paused.minimum) == (1, 2)


def test_pytorch_job_managed_elsewhere_may_not_be_suspended():
    job = parse(pytorch_job("t", workers=1, managedBy="kueue.x-k8s.io/multikueue"))

    assert not job.may_be_suspended


def test_pytorch_job_move_is_annotated_until_the_next_stop_of_the_job():
    noted = {QUEUE_REASON: "waits", MOVED: "moved to n2"}
    waiting = parse(pytorch_job("t", workers=1, suspend=True), metadata={"annotations": noted})
    running = parse(pytorch_job("t", workers=1), metadata={"annotations": {MOVED: "moved to n2"}})
    path = "/metadata/annotations/runai~1moved"

    def changes(steps):
        return [step for step in steps if step["path"] == path]

    moves = suspend_patch(running, now=1.0, why="w (R10)", priority=50, moved="moved to n1")
    stops = suspend_patch(running, now=1.0, why="w (R2)", priority=50)

    assert (waiting.moved, running.moved) == ("moved to n2", "moved to n2")
    assert changes(unsuspend_patch(waiting, now=2.0)) == []
    assert changes(moves) == [{"op": "add", "path": path, "value": "moved to n1"}]
    for steps in (stops, resizing(running, why="w (E2)", priority=50)):
        assert changes(steps) == [{"op": "remove", "path": path}]
    assert suspended(running, "ana")["metadata"]["annotations"][MOVED] is None
