"""Who is to train of an elastic job whose pods come up one by one, and leave before they did."""

from __future__ import annotations

from typing import Any

import pytest

from clusters.kubernetes.worlds import an_elastic
from control_plane.lab import ClusterLab, allow_jobs
from control_plane.processes import NODE
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.records import WorkloadRecord
from runai.hub_service.elastic_messages import Status, WorkerPhase

pytestmark = pytest.mark.kubernetes

SPEC = an_elastic("e", 3, image="example/train")
INDEX = "batch.kubernetes.io/job-completion-index"


class Workers:
    """The pods of one elastic job, on a node whose kubelet is the test."""

    def __init__(self, lab: ClusterLab, scheduler: Scheduler, eventually: Any) -> None:
        self.lab, self.scheduler, self.eventually = lab, scheduler, eventually
        scheduler.call(scheduler.cluster.submit([SPEC]))

    def bound(self) -> dict[int, str]:
        """Return the names of pods that are bound, by their indexes."""
        return {
            int(pod["metadata"]["annotations"][INDEX]): pod["metadata"]["name"]
            for pod in self.lab.namespace.pods("vision-e")
            if "nodeName" in pod["spec"]
        }

    def come_up(self, *indexes: int) -> None:
        """Have containers run, and wait until the scheduler has seen it."""
        for index in indexes:
            status = {"phase": "Running", "podIP": f"10.0.0.{index + 1}"}
            path = f"/api/v1/namespaces/{self.lab.namespace.name}/pods/{self.bound()[index]}/status"
            merge = "application/merge-patch+json"
            self.lab.plane.request("PATCH", path, {"status": status}, content_type=merge)
        self.eventually(
            lambda: all(self.record().workers[index].state == "running" for index in indexes),
            what="they run",
        )

    def tell(self, index: int) -> None:
        """Have a worker tell that it is ready, whether or not its pod is known to run."""
        name = f"{self.lab.namespace.name}/{self.bound()[index]}"
        status = Status(f"vision/e-{index}", 0, WorkerPhase.READY, 1, 0, 0, 0)
        self.scheduler.call(self.scheduler.cluster.worker_told(name, status))

    def record(self) -> WorkloadRecord:
        return self.scheduler.call(self.scheduler.cluster.workload(SPEC.id))

    def ranks(self) -> list[str]:
        state = self.record().elastic
        return [] if state is None or state.target is None else list(state.target.ranks)


@pytest.fixture
def workers(lab, rights, eventually):
    allow_jobs(lab.plane, lab.namespace.name)
    lab.node(NODE, gpus=3)
    lab.project("vision", quota=3)
    with Scheduler(rights, namespace=lab.namespace.name) as scheduler:
        made = Workers(lab, scheduler, eventually)
        eventually(lambda: len(made.bound()) == 3, what="all are bound")
        yield made


def test_a_worker_that_leaves_before_it_is_up_is_not_waited_for(workers):
    workers.come_up(0, 1)
    assert workers.ranks() == []  # the third one may come up at any moment

    record = workers.scheduler.call(
        workers.scheduler.cluster.scale(SPEC.id, workers=2, min_workers=None, by="ana")
    )

    assert list(record.elastic.target.ranks) == ["vision/e-0", "vision/e-1"]


def test_a_worker_that_tells_of_itself_is_up_whatever_the_watch_has_shown(workers):
    workers.come_up(0, 1)
    assert workers.ranks() == []

    def all_train() -> bool:
        for index in range(3):  # as they tell again in their pods, too
            workers.tell(index)
        return sorted(workers.ranks()) == [f"vision/e-{index}" for index in range(3)]

    workers.eventually(all_train, what="all of them train")
    assert workers.record().workers[2].state == "starting"
