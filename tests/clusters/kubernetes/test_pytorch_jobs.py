"""Kubeflow's PyTorchJobs, with pods of its own operator: one workload and gang, paused as one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.kubeflow import (
    kind_of_pytorch_jobs,
    pytorch_job,
    pytorch_jobs,
    training_operator,
    without_pytorch_jobs,
)
from control_plane.lab import allow_jobs
from control_plane.objects import Namespace, pod
from control_plane.scheduling import Scheduler

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.kubeflow,
    pytest.mark.usefixtures("witness"),
    pytest.mark.timeout(300),
]

JOB_LABEL = "training.kubeflow.org/job-name"
PATTYS = {"project": "patty"}


@pytest.fixture(scope="module")
def operator(plane) -> Iterator[None]:
    with kind_of_pytorch_jobs(plane), training_operator(plane):
        yield


@pytest.fixture
def namespace(lab, operator) -> Iterator[Namespace]:
    """A namespace for PyTorchJobs, with a project that lends and one that borrows."""
    lab.project("bob", quota=1)
    lab.project("patty", quota=1)
    yield from without_pytorch_jobs(lab.namespace)


def create_job(namespace: Namespace, job: dict[str, Any]) -> None:
    namespace.plane.request("POST", pytorch_jobs(namespace.name), job)


def fetch_job(namespace: Namespace, name: str = "train") -> dict[str, Any]:
    found: dict[str, Any] = namespace.plane.request("GET", pytorch_jobs(namespace.name, name))
    return found


def pods(namespace: Namespace, name: str = "train") -> list[dict[str, Any]]:
    return [p for p in namespace.pods() if p["metadata"]["labels"].get(JOB_LABEL) == name]


def bound(namespace: Namespace, name: str = "train") -> list[str]:
    """Return the names of its pods that are bound and not terminating."""
    return [
        p["metadata"]["name"]
        for p in pods(namespace, name)
        if "nodeName" in p["spec"] and "deletionTimestamp" not in p["metadata"]
    ]


def has_condition(namespace: Namespace, kind: str) -> bool:
    """Return True if the operator reports this condition now."""
    conditions = fetch_job(namespace).get("status", {}).get("conditions", ())
    return any((c["type"], c["status"]) == (kind, "True") for c in conditions)


ALL_PODS = ["train-master-0", "train-worker-0", "train-worker-1"]


def test_pytorch_job_master_and_workers_are_one_workload_that_starts_whole(
    lab, namespace, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=2)
    create_job(namespace, pytorch_job("train", workers=2, labels=PATTYS))

    with Scheduler(kubeconfig) as scheduler:
        eventually(lambda: len(pods(namespace)) == 3, what="the operator makes its pods")

        def waiting() -> list[str]:
            conditions = [p["status"].get("conditions", [{}])[0] for p in pods(namespace)]
            found = [condition.get("message", "") for condition in conditions]
            return found if all(found) else []

        messages = eventually(waiting, what="each of its pods says why it waits")
        assert bound(namespace) == []
        lab.node("gpu-1", gpus=1)
        eventually(lambda: bound(namespace) == ALL_PODS, what="all of it runs")
        (record,) = scheduler.call(scheduler.cluster.workloads())

    assert len(set(messages)) == 1
    assert record.id == f"patty/{namespace.name}.train"
    assert (record.spec.kind, record.spec.workers, record.spec.min_workers) == ("job", 3, 3)
    assert [worker.name for worker in record.workers] == [f"{record.id}-{i}" for i in range(3)]


def test_pytorch_job_is_paused_for_an_owner_resumes_and_succeeds(
    lab, namespace, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=2)
    create_job(namespace, pytorch_job("train", workers=1, labels=PATTYS, restarts="Never"))

    with Scheduler(kubeconfig) as scheduler:
        for turn in range(3):
            eventually(lambda: len(bound(namespace)) == 2, what=f"the PyTorchJob runs, turn {turn}")
            # Exit codes other than 0 after SIGTERM are no failures either.
            owner = f"bob-{turn}"
            namespace.create(pod(owner, project="bob"))
            eventually(lambda owner=owner: namespace.node_of(owner), what=f"{owner} has his GPU")
            eventually(lambda: not pods(namespace), what="its pods are gone")
            assert fetch_job(namespace)["spec"]["runPolicy"]["suspend"] is True
            (paused,) = scheduler.call(_jobs(scheduler))
            assert paused.state == "paused"
            namespace.delete(owner)
        eventually(lambda: len(bound(namespace)) == 2, what="the PyTorchJob runs again")
        for name in bound(namespace):
            namespace.finish(name)
        eventually(
            lambda: has_condition(namespace, "Succeeded"), what="the operator reports success"
        )

        def state() -> str:
            (record,) = scheduler.call(_jobs(scheduler))
            return str(record.state)

        eventually(lambda: state() == "succeeded", what="the workload has succeeded")

    assert not has_condition(namespace, "Failed")
    notes = fetch_job(namespace)["metadata"]["annotations"]
    assert len(json.loads(notes["runai/pauses"])) == 3


async def _jobs(scheduler: Scheduler) -> list[Any]:
    return [r for r in await scheduler.cluster.workloads() if r.spec.kind == "job"]


def test_user_can_suspend_resume_and_delete_a_pytorch_job(lab, namespace, kubeconfig, eventually):
    allow_jobs(lab.plane, namespace.name)
    lab.node("gpu-0", gpus=2)
    create_job(namespace, pytorch_job("train", workers=1, labels=PATTYS))
    name = f"patty/{namespace.name}.train"

    with Scheduler(kubeconfig) as scheduler:
        cluster = scheduler.cluster
        eventually(lambda: len(bound(namespace)) == 2, what="the PyTorchJob runs")
        scheduler.call(cluster.suspend(name, by="patty"))
        eventually(lambda: not pods(namespace), what="its pods are gone")
        assert scheduler.call(cluster.workload(name)).state == "suspended"
        scheduler.call(cluster.resume(name, by="patty"))
        eventually(lambda: len(bound(namespace)) == 2, what="the PyTorchJob runs again")
        scheduler.call(cluster.delete(name, by="patty"))
        eventually(lambda: not pods(namespace), what="its pods are gone again")

        eventually(
            lambda: not namespace.plane.request("GET", pytorch_jobs(namespace.name))["items"],
            what="the PyTorchJob is gone",
        )


def test_failed_pytorch_job_names_the_worker_that_failed(lab, namespace, kubeconfig, eventually):
    lab.node("gpu-0", gpus=2)
    fields: Any = {"restarts": "Never", "cleanPodPolicy": "Running"}  # else its master would run on
    create_job(namespace, pytorch_job("train", workers=1, labels=PATTYS, **fields))

    with Scheduler(kubeconfig) as scheduler:
        eventually(lambda: len(bound(namespace)) == 2, what="the PyTorchJob runs")
        namespace.finish("train-worker-0", exit_code=3)

        def ended() -> Any:
            record = scheduler.call(scheduler.cluster.workload(f"patty/{namespace.name}.train"))
            return record if record.state == "failed" else None

        record = eventually(ended, what="the PyTorchJob has failed")

    assert record.reason.text == "worker 1 ended with exit code 3"


def test_elastic_pytorch_job_shrinks_and_grows_worker_by_worker(
    lab, namespace, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=2)
    job = pytorch_job("train", workers=3, master_gpus=None, labels=PATTYS)
    job["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d"}
    create_job(namespace, job)

    def uids() -> dict[str, str]:
        bound_names = set(bound(namespace))
        found = {p["metadata"]["name"]: p["metadata"]["uid"] for p in pods(namespace)}
        return {name: uid for name, uid in found.items() if name in bound_names}

    with Scheduler(kubeconfig) as scheduler:
        first = eventually(lambda: u if len(u := uids()) == 2 else None, what="two of three run")
        assert "train-worker-0" in first, "the workers meet at the first one"
        (record,) = scheduler.call(_jobs(scheduler))
        assert (record.spec.workers, record.spec.min_workers) == (3, 1)
        lab.node("gpu-1", gpus=1)
        whole = eventually(lambda: u if len(u := uids()) == 3 else None, what="it has grown")
        assert whole.items() > first.items(), "no worker was restarted"

        namespace.create(pod("owner", project="bob"))
        eventually(lambda: namespace.node_of("owner"), what="bob has his GPU")
        remaining = eventually(lambda: u if len(u := uids()) == 2 else None, what="it has shrunk")
        assert remaining.items() < whole.items(), "the remaining workers run on"
        assert "train-worker-0" in remaining
        (record,) = scheduler.call(_jobs(scheduler))
        assert (record.state, record.pauses) == ("running", ())

        namespace.delete("owner")
        eventually(lambda: len(uids()) == 3, what="the PyTorchJob has grown again")
        namespace.finish("train-worker-0")
        eventually(
            lambda: has_condition(namespace, "Succeeded"), what="one finished worker ends the job"
        )

    assert not has_condition(namespace, "Failed")
