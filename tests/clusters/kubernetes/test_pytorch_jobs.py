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

JOB = "training.kubeflow.org/job-name"
PATTYS = {"project": "patty"}


@pytest.fixture(scope="module")
def operator(plane) -> Iterator[None]:
    with kind_of_pytorch_jobs(plane), training_operator(plane):
        yield


@pytest.fixture
def work(lab, operator) -> Iterator[Namespace]:
    """A namespace for PyTorchJobs, with a project that lends and one that borrows."""
    lab.project("bob", quota=1)
    lab.project("patty", quota=1)
    yield from without_pytorch_jobs(lab.namespace)


def apply(work: Namespace, job: dict[str, Any]) -> None:
    work.plane.request("POST", pytorch_jobs(work.name), job)


def fetch_job(work: Namespace, name: str = "train") -> dict[str, Any]:
    found: dict[str, Any] = work.plane.request("GET", pytorch_jobs(work.name, name))
    return found


def pods(work: Namespace, name: str = "train") -> list[dict[str, Any]]:
    return [p for p in work.pods() if p["metadata"]["labels"].get(JOB) == name]


def bound(work: Namespace, name: str = "train") -> list[str]:
    """Return the names of its pods that are bound and not terminating."""
    return [
        p["metadata"]["name"]
        for p in pods(work, name)
        if "nodeName" in p["spec"] and "deletionTimestamp" not in p["metadata"]
    ]


def has_condition(work: Namespace, kind: str) -> bool:
    """Return True if the operator reports this condition now."""
    conditions = fetch_job(work).get("status", {}).get("conditions", ())
    return any((c["type"], c["status"]) == (kind, "True") for c in conditions)


ALL = ["train-master-0", "train-worker-0", "train-worker-1"]


def test_pytorch_job_master_and_workers_are_one_workload_that_starts_whole(
    lab, work, rights, eventually
):
    lab.node("gpu-0", gpus=2)
    apply(work, pytorch_job("train", workers=2, labels=PATTYS))

    with Scheduler(rights) as scheduler:
        eventually(lambda: len(pods(work)) == 3, what="the operator makes its pods")

        def waiting() -> list[str]:
            found = [p["status"].get("conditions", [{}])[0].get("message", "") for p in pods(work)]
            return found if all(found) else []

        sentences = eventually(waiting, what="each of its pods says why it waits")
        assert bound(work) == []
        lab.node("gpu-1", gpus=1)
        eventually(lambda: bound(work) == ALL, what="all of it runs")
        (record,) = scheduler.call(scheduler.cluster.workloads())

    assert len(set(sentences)) == 1
    assert record.id == f"patty/{work.name}.train"
    assert (record.spec.kind, record.spec.workers, record.spec.min_workers) == ("job", 3, 3)
    assert [worker.name for worker in record.workers] == [f"{record.id}-{i}" for i in range(3)]


def test_pytorch_job_is_paused_for_an_owner_resumes_and_succeeds(lab, work, rights, eventually):
    lab.node("gpu-0", gpus=2)
    apply(work, pytorch_job("train", workers=1, labels=PATTYS, restarts="Never"))

    with Scheduler(rights) as scheduler:
        for turn in range(3):
            eventually(lambda: len(bound(work)) == 2, what=f"it runs, turn {turn}")
            # Exit codes other than 0 after SIGTERM are no failures either.
            owner = f"bob-{turn}"
            work.create(pod(owner, project="bob"))
            eventually(lambda owner=owner: work.node_of(owner), what=f"{owner} has his GPU")
            eventually(lambda: not pods(work), what="its pods are gone")
            assert fetch_job(work)["spec"]["runPolicy"]["suspend"] is True
            (paused,) = scheduler.call(_jobs(scheduler))
            assert paused.state == "paused"
            work.delete(owner)
        eventually(lambda: len(bound(work)) == 2, what="it runs again")
        for name in bound(work):
            work.finish(name)
        eventually(
            lambda: has_condition(work, "Succeeded"), what="the operator says that it is done"
        )

        def state() -> str:
            (record,) = scheduler.call(_jobs(scheduler))
            return str(record.state)

        eventually(lambda: state() == "succeeded", what="we say so too")

    assert not has_condition(work, "Failed")
    notes = fetch_job(work)["metadata"]["annotations"]
    assert len(json.loads(notes["runai/pauses"])) == 3


async def _jobs(scheduler: Scheduler) -> list[Any]:
    return [r for r in await scheduler.cluster.workloads() if r.spec.kind == "job"]


def test_user_can_suspend_resume_and_delete_a_pytorch_job(lab, work, rights, eventually):
    allow_jobs(lab.plane, work.name)
    lab.node("gpu-0", gpus=2)
    apply(work, pytorch_job("train", workers=1, labels=PATTYS))
    name = f"patty/{work.name}.train"

    with Scheduler(rights) as scheduler:
        cluster = scheduler.cluster
        eventually(lambda: len(bound(work)) == 2, what="it runs")
        scheduler.call(cluster.suspend(name, by="patty"))
        eventually(lambda: not pods(work), what="its pods are gone")
        assert scheduler.call(cluster.workload(name)).state == "suspended"
        scheduler.call(cluster.resume(name, by="patty"))
        eventually(lambda: len(bound(work)) == 2, what="it runs again")
        scheduler.call(cluster.delete(name, by="patty"))
        eventually(lambda: not pods(work), what="its pods are gone with it")

        eventually(
            lambda: not work.plane.request("GET", pytorch_jobs(work.name))["items"], what="it too"
        )


def test_failed_pytorch_job_names_the_worker_that_failed(lab, work, rights, eventually):
    lab.node("gpu-0", gpus=2)
    fields: Any = {"restarts": "Never", "cleanPodPolicy": "Running"}  # else its master would run on
    apply(work, pytorch_job("train", workers=1, labels=PATTYS, **fields))

    with Scheduler(rights) as scheduler:
        eventually(lambda: len(bound(work)) == 2, what="it runs")
        work.finish("train-worker-0", exit_code=3)

        def ended() -> Any:
            record = scheduler.call(scheduler.cluster.workload(f"patty/{work.name}.train"))
            return record if record.state == "failed" else None

        record = eventually(ended, what="it has failed")

    assert record.reason.text == "worker 1 ended with exit code 3"


def test_elastic_pytorch_job_shrinks_and_grows_worker_by_worker(lab, work, rights, eventually):
    lab.node("gpu-0", gpus=2)
    job = pytorch_job("train", workers=3, master_gpus=None, labels=PATTYS)
    job["spec"]["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d"}
    apply(work, job)

    def uids() -> dict[str, str]:
        bound_names = set(bound(work))
        found = {p["metadata"]["name"]: p["metadata"]["uid"] for p in pods(work)}
        return {name: uid for name, uid in found.items() if name in bound_names}

    with Scheduler(rights) as scheduler:
        first = eventually(lambda: u if len(u := uids()) == 2 else None, what="two of three run")
        assert "train-worker-0" in first, "the others meet at the first one"
        (record,) = scheduler.call(_jobs(scheduler))
        assert (record.spec.workers, record.spec.min_workers) == (3, 1)
        lab.node("gpu-1", gpus=1)
        whole = eventually(lambda: u if len(u := uids()) == 3 else None, what="it has grown")
        assert whole.items() > first.items(), "and nobody was restarted"

        work.create(pod("owner", project="bob"))
        eventually(lambda: work.node_of("owner"), what="bob has his GPU")
        left = eventually(lambda: u if len(u := uids()) == 2 else None, what="it has shrunk")
        assert left.items() < whole.items(), "and the others run on"
        assert "train-worker-0" in left
        (record,) = scheduler.call(_jobs(scheduler))
        assert (record.state, record.pauses) == ("running", ())

        work.delete("owner")
        eventually(lambda: len(uids()) == 3, what="it has grown again")
        work.finish("train-worker-0")
        eventually(
            lambda: has_condition(work, "Succeeded"), what="one that is done is the end of all"
        )

    assert not has_condition(work, "Failed")
