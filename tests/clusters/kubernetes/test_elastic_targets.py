"""The training target of an elastic job while its pods start one by one, or leave early."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from clusters.kubernetes.parsed_objects import elastic_spec
from control_plane.lab import ClusterLab, allow_jobs
from control_plane.process_kubelet import NODE
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import LEFT
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.wire.elastic_messages import WorkerPhase, WorkerStatus

pytestmark = pytest.mark.kubernetes

SPEC = elastic_spec("e", 3, image="example/train")
INDEX = "batch.kubernetes.io/job-completion-index"


class ElasticWorkers:
    """The pods of one elastic job, on a node with the test as its kubelet."""

    def __init__(self, lab: ClusterLab, scheduler: Scheduler, eventually: Any) -> None:
        self.lab, self.scheduler, self.eventually = lab, scheduler, eventually
        scheduler.call(scheduler.cluster.submit([SPEC]))

    def bound(self) -> dict[int, str]:
        """Return the names of the bound pods, by completion index."""
        return {
            int(pod["metadata"]["annotations"][INDEX]): pod["metadata"]["name"]
            for pod in self.lab.namespace.pods("vision-e")
            if "nodeName" in pod["spec"]
        }

    def mark_running(self, *indexes: int) -> None:
        """Set the containers to running, and wait until the scheduler has seen it."""
        for index in indexes:
            status = {"phase": "Running", "podIP": f"10.0.0.{index + 1}"}
            self._show(self.bound()[index], status)
        self.eventually(
            lambda: all(self.record().workers[index].state == "running" for index in indexes),
            what="they run",
        )

    def report_ready(self, index: int) -> None:
        """Report a worker as ready, whether or not its pod is known to run."""
        name = f"{self.lab.namespace.name}/{self.bound()[index]}"
        status = WorkerStatus(f"vision/e-{index}", 0, WorkerPhase.READY, 1, 0, 0, 0)
        self.scheduler.call(self.scheduler.cluster.elastic.store_worker_status(name, status))

    def pod_name(self, index: int) -> str:
        return f"{self.lab.namespace.name}/{self.bound()[index]}"

    def status(self, index: int, phase: WorkerPhase) -> WorkerStatus:
        return WorkerStatus(f"vision/e-{index}", 1, phase, 1, 0, 10.0, 3)

    def report_phase(self, index: int, phase: WorkerPhase) -> None:
        """Report a worker's phase."""
        report = self.scheduler.cluster.elastic.store_worker_status(
            self.pod_name(index), self.status(index, phase)
        )
        self.scheduler.call(report)

    def end_worker(self, index: int) -> int:
        """Report exit code 0; return the pod's exit code from the answer, once its end is seen."""
        name = self.bound()[index]
        exit_code = self.scheduler.call(
            self.scheduler.cluster.elastic.worker_ended(f"{self.lab.namespace.name}/{name}", 0)
        )
        ended = {"state": {"terminated": {"exitCode": exit_code}}}
        container = {
            "name": "worker",
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
        }
        phase = "Failed" if exit_code else "Succeeded"
        self._show(name, {"phase": phase, "containerStatuses": [container | ended]})
        self.eventually(
            lambda: self.record().workers[index].state in ("finished", "pending"),
            what=f"worker {index} has ended",
        )
        return exit_code

    def record(self) -> WorkloadRecord:
        return self.scheduler.call(self.scheduler.cluster.workload(SPEC.id))

    def _show(self, name: str, status: dict[str, Any]) -> None:
        """Write a pod's status like a kubelet."""
        path = f"/api/v1/namespaces/{self.lab.namespace.name}/pods/{name}/status"
        merge = "application/merge-patch+json"
        self.lab.plane.request("PATCH", path, {"status": status}, content_type=merge)

    def target_ranks(self) -> list[str]:
        state = self.record().elastic
        return [] if state is None or state.target is None else list(state.target.ranks)


@pytest.fixture
def workers(lab, kubeconfig, eventually):
    allow_jobs(lab.plane, lab.namespace.name)
    lab.node(NODE, gpus=3)
    lab.project("vision", quota=3)
    with Scheduler(kubeconfig, namespace=lab.namespace.name) as scheduler:
        workers = ElasticWorkers(lab, scheduler, eventually)
        eventually(lambda: len(workers.bound()) == 3, what="all are bound")
        yield workers


def test_elastic_target_omits_a_worker_removed_before_it_started(workers):
    workers.mark_running(0, 1)
    assert workers.target_ranks() == []  # the third one may start at any moment

    record = workers.scheduler.call(
        workers.scheduler.cluster.scale(SPEC.id, workers=2, min_workers=None, by="ana")
    )

    assert list(record.elastic.target.ranks) == ["vision/e-0", "vision/e-1"]


def test_worker_reported_ready_joins_the_elastic_target_before_its_pod_is_running(workers):
    workers.mark_running(0, 1)
    assert workers.target_ranks() == []

    def all_train() -> bool:
        for index in range(3):  # as workers in pods repeat their reports, too
            workers.report_ready(index)
        return sorted(workers.target_ranks()) == [f"vision/e-{index}" for index in range(3)]

    workers.eventually(all_train, what="all of them train")
    assert workers.record().workers[2].state == "starting"


class ReportingApi:
    """An API in which a worker reports something before each patch of a Job."""

    def __init__(self, api: Api, report: Callable[[], Awaitable[None]]) -> None:
        self.create, self._patch, self._report = api.create, api.patch, report

    async def patch(self, path: str, body: Any) -> Any:
        await self._report()
        return await self._patch(path, body)


def test_elastic_worker_report_during_a_job_write_is_not_lost(workers, monkeypatch):
    workers.mark_running(0, 1, 2)
    workers.eventually(lambda: len(workers.target_ranks()) == 3, what="all of them train")
    cluster, first = workers.scheduler.cluster, workers.pod_name(0)

    async def report_running() -> None:
        await cluster.elastic.store_worker_status(first, workers.status(0, WorkerPhase.RUNNING))

    monkeypatch.setattr(
        cluster.elastic._elastic, "_api", ReportingApi(cluster._api, report_running)
    )
    record = workers.scheduler.call(cluster.scale(SPEC.id, workers=2, min_workers=None, by="ana"))

    assert list(record.elastic.target.ranks) == ["vision/e-0", "vision/e-1"]
    assert record.elastic.phases["vision/e-0"] is WorkerPhase.RUNNING


def test_elastic_workers_that_end_one_after_the_other_record_no_resize(workers):
    workers.mark_running(0, 1, 2)
    workers.eventually(lambda: len(workers.target_ranks()) == 3, what="all of them train")
    for index in range(3):
        workers.report_phase(index, WorkerPhase.RUNNING)
    before = workers.record().elastic.resizes

    codes = [workers.end_worker(index) for index in (1, 0, 2)]
    workers.eventually(lambda: workers.record().state.finished, what="the job is finished")

    done = workers.record()
    assert codes == [LEFT, LEFT, 0]
    assert done.elastic.resizes == before
    assert len(done.elastic.target.ranks) == 3, "the target never changed"
