"""Job arrays on a real API server: one Indexed Job, whose pods are workloads of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import events
from clusters.kubernetes.test_pdb_backoff import running_pods
from control_plane.faults import FaultyServer
from control_plane.lab import ClusterLab, allow_jobs
from control_plane.objects import pod
from control_plane.scheduling import Scheduler
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound, RunaiError

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

JOB = "patty-sweep"
INDEX = "batch.kubernetes.io/job-completion-index"
Eventually = Callable[..., Any]


class Arrays:
    """A namespace for jobs, a scheduler that can be restarted, and an array `patty/sweep`."""

    def __init__(self, lab: ClusterLab, kubeconfig: Any, eventually: Eventually) -> None:
        self.work, self.kubeconfig, self.eventually = lab.namespace, kubeconfig, eventually
        self.scheduler: Scheduler
        allow_jobs(lab.plane, self.work.name)

    def start(self, kubeconfig: Any = None) -> Scheduler:
        self.scheduler = Scheduler(kubeconfig or self.kubeconfig, namespace=self.work.name)
        return self.scheduler

    def submit(self, size: int, **fields: Any) -> None:
        spec = WorkloadSpec(
            "patty",
            "sweep",
            "patty",
            "job",
            ("train",),
            gpus=MilliGpu(1000),
            array=size,
            image="example/train",
        )
        self.scheduler.call(self.scheduler.cluster.submit([replace(spec, **fields)]))

    def workload(self, name: str) -> WorkloadRecord:
        return self.scheduler.call(self.scheduler.cluster.workload(f"patty/{name}"))

    def states(self) -> dict[str, str]:
        """Return the state of each record, and the number of its elements."""
        found = self.scheduler.call(self.scheduler.cluster.workloads())
        return {r.spec.name: f"{r.state} {r.size}" for r in found if r.spec.array}

    def delete(self, name: str) -> None:
        self.scheduler.call(self.scheduler.cluster.delete(f"patty/{name}", by="patty"))

    def running_elements(self) -> dict[int, str]:
        """Return the names of its running pods, by index."""
        names = running_pods(self.work, JOB)
        found = {p["metadata"]["name"]: p["metadata"]["annotations"] for p in self.work.pods(JOB)}
        return {int(found[name][INDEX]): name for name in names if name in found}

    def wait_until_running(self, *indexes: int) -> dict[int, str]:
        found: dict[int, str] = self.eventually(
            lambda: r if (r := self.running_elements()).keys() == set(indexes) else None,
            what=f"elements {indexes} run",
        )
        return found

    def wait_until_no_pod_waits(self) -> None:
        """Wait until the Job wants no more pods than run, and has no more."""
        self.eventually(
            lambda: (
                self.work.job(JOB)["spec"]["parallelism"]
                == len(self.running_elements())
                == len(self.unfinished_pods())
            ),
            what="no pod waits",
        )

    def unfinished_pods(self) -> list[str]:
        """Return the names of the pods that have not ended."""
        pods = self.work.pods(JOB)
        return [
            p["metadata"]["name"]
            for p in pods
            if p["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.work.job(JOB)["status"]
        return found

    def wait_until_over(self) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            status = self.status()
            kinds = {c["type"] for c in status.get("conditions", ()) if c["status"] == "True"}
            return status if kinds & {"Complete", "Failed"} else None

        found: dict[str, Any] = self.eventually(ended, what="the Job is over")
        return found


@pytest.fixture
def two_gpus(lab: ClusterLab, kubeconfig: Any, eventually: Eventually) -> Arrays:
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=1)
    lab.project("patty", quota=0)
    return Arrays(lab, kubeconfig, eventually)


def test_pause_of_an_array_element_evicts_the_pod_of_that_element_only(two_gpus):
    with two_gpus.start():
        two_gpus.submit(size=4)
        before = two_gpus.wait_until_running(0, 1)
        two_gpus.work.create(pod("owner", project="bob"))
        two_gpus.eventually(lambda: two_gpus.work.node_of("owner"), what="bob has his GPU")
        (remaining,) = two_gpus.wait_until_running(0).items()
        two_gpus.wait_until_no_pod_waits()

        assert remaining == (0, before[0])
        assert two_gpus.states() == {
            "sweep": "queued 2",  # the two elements that never ran
            "sweep-0": "running 1",
            "sweep-1": "paused 1",
        }
        assert len(two_gpus.workload("sweep-1").pauses) == 1

        two_gpus.work.delete("owner")
        after = two_gpus.wait_until_running(0, 1)
        assert after[0] == before[0]
        annotations = two_gpus.work.pod(after[1])["metadata"]["annotations"]
        assert annotations["runai/resumed"] == "1"
        assert two_gpus.workload("sweep-1").attempts == 2
    assert two_gpus.status().get("failed", 0) == 0


def test_lower_parallelism_of_an_array_job_ends_no_running_element(two_gpus):
    """Each pod that ever had a node has completed, or was paused for an owner."""
    needed_starts = 6 + 2  # of the elements and of the two owners
    with two_gpus.start():
        two_gpus.submit(size=6)
        for turn in range(2):
            two_gpus.eventually(
                lambda: len(two_gpus.running_elements()) == 2, what=f"two run, turn {turn}"
            )
            two_gpus.work.create(pod(f"owner-{turn}", project="bob"))
            two_gpus.eventually(
                lambda turn=turn: two_gpus.work.node_of(f"owner-{turn}"), what="bob has his GPU"
            )
            two_gpus.wait_until_no_pod_waits()
            for name in two_gpus.running_elements().values():
                two_gpus.work.finish(name)
            two_gpus.work.delete(f"owner-{turn}")
        for _ in range(20):  # more turns than the elements need
            for name in two_gpus.running_elements().values():
                two_gpus.work.finish(name)
            if two_gpus.status().get("succeeded") == 6:
                break
            two_gpus.eventually(
                lambda: two_gpus.running_elements() or two_gpus.status().get("succeeded") == 6,
                what="a further element runs",
            )
        status = two_gpus.wait_until_over()
        scheduled_events = two_gpus.eventually(
            lambda: (
                s
                if len(s := events(two_gpus.work, "Scheduled"))
                == needed_starts + len(events(two_gpus.work, "Preempted"))
                else None
            ),
            what="each pod that started has completed or was paused",
        )
    assert (status["completedIndexes"], status.get("failed", 0)) == ("0-5", 0)
    assert len(scheduled_events) >= needed_starts + 2  # each owner paused an element


def test_deleted_running_array_element_stops_and_never_restarts(two_gpus):
    with two_gpus.start():
        two_gpus.submit(size=3)
        before = two_gpus.wait_until_running(0, 1)
        two_gpus.work.annotate(before[0], {"test/stops-in": "4s"})
        two_gpus.delete("sweep-0")
        record = two_gpus.eventually(
            lambda: r if (r := two_gpus.workload("sweep-0")).state == "stopping" else None,
            what="the element stops",
        )
        assert record.reason.text == "deleted by its user"

        after = two_gpus.wait_until_running(1, 2)
        assert after[1] == before[1]
        with pytest.raises(NotFound):
            two_gpus.workload("sweep-0")
        assert two_gpus.workload("sweep").states == {"running": 2}
        for name in after.values():
            two_gpus.work.finish(name)
        status = two_gpus.wait_until_over()
        two_gpus.eventually(
            lambda: two_gpus.workload("sweep").state == "succeeded", what="the array has succeeded"
        )
    assert (status["failedIndexes"], status["completedIndexes"]) == ("0", "1,2")


def test_deleted_waiting_array_element_is_never_bound_to_a_node(two_gpus):
    with two_gpus.start():
        two_gpus.submit(size=5)
        first = two_gpus.wait_until_running(0, 1)
        for name in ("sweep-2", "sweep-4"):
            two_gpus.delete(name)
        assert two_gpus.states()["sweep"] == "queued 1"
        two_gpus.work.finish(first[0])
        second = two_gpus.wait_until_running(1, 3)
        for name in second.values():
            two_gpus.work.finish(name)
        status = two_gpus.wait_until_over()
        assert two_gpus.workload("sweep").states == {"succeeded": 3}
        nodes = {
            p["metadata"]["annotations"][INDEX]: p["spec"].get("nodeName")
            for p in two_gpus.work.pods(JOB)
        }
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,1,3", "2,4")
    assert {index: node for index, node in nodes.items() if index in "24"} == {
        "2": None,
        "4": None,
    }


def test_array_is_deleted_with_its_last_element(two_gpus):
    with two_gpus.start():
        two_gpus.work.create(pod("owner", 2, project="bob"))
        two_gpus.submit(size=2)
        for name in ("sweep-0", "sweep-1"):
            two_gpus.delete(name)
        two_gpus.eventually(lambda: two_gpus.states() == {}, what="nothing is listed")
        with pytest.raises(NotFound):
            two_gpus.workload("sweep")


def test_restarted_scheduler_knows_paused_and_deleted_array_elements(two_gpus):
    with two_gpus.start():
        two_gpus.submit(size=5)
        before = two_gpus.wait_until_running(0, 1)
        two_gpus.work.create(pod("owner", project="bob"))
        two_gpus.wait_until_running(0)
        two_gpus.wait_until_no_pod_waits()
        two_gpus.delete("sweep-3")
        known = two_gpus.states()
    with two_gpus.start():
        two_gpus.eventually(lambda: two_gpus.states() == known, what="the list is the same")
        two_gpus.work.delete("owner")
        assert two_gpus.wait_until_running(0, 1)[0] == before[0]
        two_gpus.work.finish(before[0])
        two_gpus.wait_until_running(1, 2)


def test_element_pause_cut_off_by_a_crash_is_completed_by_the_next_scheduler(two_gpus):
    with FaultyServer(two_gpus.kubeconfig) as server, two_gpus.start(server.kubeconfig):
        two_gpus.submit(size=3)
        before = two_gpus.wait_until_running(0, 1)
        server.die_at("POST", "/eviction")
        two_gpus.work.create(pod("owner", project="bob"))
        two_gpus.eventually(lambda: server.is_down, what="the first scheduler is dead")
    assert two_gpus.running_elements() == before
    with two_gpus.start():
        two_gpus.eventually(lambda: two_gpus.work.node_of("owner"), what="bob has his GPU")
        assert two_gpus.wait_until_running(0)[0] == before[0]
        two_gpus.work.delete("owner")
        after = two_gpus.wait_until_running(0, 1)
        annotations = two_gpus.work.pod(after[1])["metadata"]["annotations"]
    assert annotations["runai/resumed"] == "1"
    assert two_gpus.status().get("failed", 0) == 0


def test_element_deletion_cut_off_by_a_crash_is_completed_by_the_next_scheduler(two_gpus):
    with FaultyServer(two_gpus.kubeconfig) as server, two_gpus.start(server.kubeconfig):
        two_gpus.submit(size=3)
        before = two_gpus.wait_until_running(0, 1)
        server.die_at("PATCH", f"{before[0]}/status")
        with contextlib.suppress(RunaiError):  # its Event finds no server
            two_gpus.delete("sweep-0")
        two_gpus.eventually(lambda: server.is_down, what="the first scheduler is dead")
    assert two_gpus.running_elements() == before
    with two_gpus.start():
        assert two_gpus.wait_until_running(1, 2)[1] == before[1]
        assert two_gpus.states() == {"sweep-1": "running 1", "sweep-2": "running 1"}


def test_failed_array_element_is_retried_without_a_restart_of_running_elements(two_gpus):
    with two_gpus.start():
        two_gpus.submit(size=2, backoff_limit=1)
        first = two_gpus.wait_until_running(0, 1)
        two_gpus.work.finish(first[0], 3)
        two_gpus.eventually(
            lambda: two_gpus.workload("sweep-0").state == "retrying",
            what="the element waits for its retry",
        )
        after = two_gpus.eventually(
            lambda: r if 0 in (r := two_gpus.running_elements()) else None,
            what="the element runs again",
        )
        assert after[1] == first[1]
        two_gpus.work.finish(after[0], 4)
        record = two_gpus.eventually(
            lambda: r if (r := two_gpus.workload("sweep-0")).state == "failed" else None,
            what="the element has failed",
        )
        assert (record.exit_code, record.failures, record.attempts) == (4, 2, 2)
        assert record.reason.text == "ended with exit code 4"
        assert record.finished is not None


def test_array_of_ten_thousand_elements_starts_with_few_api_requests(two_gpus):
    with FaultyServer(two_gpus.kubeconfig) as server, two_gpus.start(server.kubeconfig):
        two_gpus.scheduler.call(two_gpus.scheduler.cluster.names())
        requests_before = len(server.requests)
        two_gpus.submit(size=10_000)
        two_gpus.wait_until_running(0, 1)
        assert two_gpus.workload("sweep").size == 10_000 - 2  # two elements run
        assert len(server.requests) - requests_before < 100


@pytest.mark.parametrize("verb", ["suspend", "resume", "scale"])
def test_suspend_resume_and_scale_of_a_single_element_are_refused(two_gpus, verb):
    with two_gpus.start():
        two_gpus.submit(size=3)
        two_gpus.wait_until_running(0, 1)
        arguments = {"workers": 2, "min_workers": None} if verb == "scale" else {}
        call = getattr(two_gpus.scheduler.cluster, verb)
        with pytest.raises(Conflict, match="is an element of an array") as refused:
            two_gpus.scheduler.call(call("patty/sweep-1", by="patty", **arguments))
    assert refused.value.code == "in_array"


@pytest.mark.parametrize(
    "fields",
    [{"workers": 2, "min_workers": 2}, {"elastic": True, "gpus_max": MilliGpu(2000)}],
    ids=["gangs", "elastic"],
)
def test_array_of_gangs_or_elastic_jobs_is_refused(two_gpus, fields):
    with two_gpus.start(), pytest.raises(InvalidRequest, match="an element is one pod"):
        two_gpus.submit(size=3, **fields)
