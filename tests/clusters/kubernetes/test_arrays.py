"""Job arrays on a real API server: one Indexed Job, whose pods are workloads of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from clusters.kubernetes.sharing_world import events
from clusters.kubernetes.test_pdb_backoff import running
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

    def __init__(self, lab: ClusterLab, rights: Any, eventually: Eventually) -> None:
        self.work, self.rights, self.eventually = lab.namespace, rights, eventually
        self.scheduler: Scheduler
        allow_jobs(lab.plane, self.work.name)

    def start(self, kubeconfig: Any = None) -> Scheduler:
        self.scheduler = Scheduler(kubeconfig or self.rights, namespace=self.work.name)
        return self.scheduler

    def submit(self, many: int, **fields: Any) -> None:
        spec = WorkloadSpec(
            "patty",
            "sweep",
            "patty",
            "job",
            ("train",),
            gpus=MilliGpu(1000),
            array=many,
            image="example/train",
        )
        self.scheduler.call(self.scheduler.cluster.submit([replace(spec, **fields)]))

    def workload(self, name: str) -> WorkloadRecord:
        return self.scheduler.call(self.scheduler.cluster.workload(f"patty/{name}"))

    def states(self) -> dict[str, str]:
        """Return the state of each record."""
        found = self.scheduler.call(self.scheduler.cluster.workloads())
        return {r.spec.name: f"{r.state} {r.size}" for r in found if r.spec.array}

    def delete(self, name: str) -> None:
        self.scheduler.call(self.scheduler.cluster.delete(f"patty/{name}", by="patty"))

    def runs(self) -> dict[int, str]:
        """Return the names of its running pods, by index."""
        names = running(self.work, JOB)
        found = {p["metadata"]["name"]: p["metadata"]["annotations"] for p in self.work.pods(JOB)}
        return {int(found[name][INDEX]): name for name in names if name in found}

    def until_runs(self, *indexes: int) -> dict[int, str]:
        found: dict[int, str] = self.eventually(
            lambda: r if (r := self.runs()).keys() == set(indexes) else None,
            what=f"elements {indexes} run",
        )
        return found

    def until_only_running(self) -> None:
        """Wait until the Job wants no more pods than run, and has no more."""
        self.eventually(
            lambda: (
                self.work.job(JOB)["spec"]["parallelism"] == len(self.runs()) == len(self.left())
            ),
            what="no pod waits",
        )

    def left(self) -> list[str]:
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

    def until_over(self) -> dict[str, Any]:
        def ended() -> dict[str, Any] | None:
            status = self.status()
            kinds = {c["type"] for c in status.get("conditions", ()) if c["status"] == "True"}
            return status if kinds & {"Complete", "Failed"} else None

        found: dict[str, Any] = self.eventually(ended, what="the Job is over")
        return found


@pytest.fixture
def arrays(lab: ClusterLab, rights: Any, eventually: Eventually) -> Arrays:
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=1)
    lab.project("patty", quota=0)
    return Arrays(lab, rights, eventually)


def test_pause_of_an_array_element_evicts_the_pod_of_that_element_only(arrays):
    with arrays.start():
        arrays.submit(4)
        before = arrays.until_runs(0, 1)
        arrays.work.create(pod("owner", project="bob"))
        arrays.eventually(lambda: arrays.work.node_of("owner"), what="bob has his GPU")
        (left,) = arrays.until_runs(0).items()
        arrays.until_only_running()

        assert left == (0, before[0])
        assert arrays.states() == {
            "sweep": "queued 2",
            "sweep-0": "running 1",
            "sweep-1": "paused 1",
        }
        assert len(arrays.workload("sweep-1").pauses) == 1

        arrays.work.delete("owner")
        again = arrays.until_runs(0, 1)
        assert again[0] == before[0]
        notes = arrays.work.pod(again[1])["metadata"]["annotations"]
        assert notes["runai/resumed"] == "1"
        assert arrays.workload("sweep-1").attempts == 2
    assert arrays.status().get("failed", 0) == 0


def test_lower_parallelism_of_an_array_job_ends_no_running_element(arrays):
    """Each pod that ever had a node has completed, or was paused for an owner."""
    with arrays.start():
        arrays.submit(6)
        for turn in range(2):
            arrays.eventually(lambda: len(arrays.runs()) == 2, what=f"two run, turn {turn}")
            arrays.work.create(pod(f"owner-{turn}", project="bob"))
            arrays.eventually(
                lambda turn=turn: arrays.work.node_of(f"owner-{turn}"), what="bob has his GPU"
            )
            arrays.until_only_running()
            for name in arrays.runs().values():
                arrays.work.finish(name)
            arrays.work.delete(f"owner-{turn}")
        for _ in range(20):
            for name in arrays.runs().values():
                arrays.work.finish(name)
            if arrays.status().get("succeeded") == 6:
                break
            arrays.eventually(
                lambda: arrays.runs() or arrays.status().get("succeeded") == 6, what="more run"
            )
        status = arrays.until_over()
        scheduled_events = arrays.eventually(
            lambda: (
                s
                if len(s := events(arrays.work, "Scheduled"))
                == 8 + len(events(arrays.work, "Preempted"))
                else None
            ),
            what="all that started have completed or were paused",
        )
    assert (status["completedIndexes"], status.get("failed", 0)) == ("0-5", 0)
    assert len(scheduled_events) >= 8 + 2


def test_deleted_running_array_element_stops_and_never_restarts(arrays):
    with arrays.start():
        arrays.submit(3)
        before = arrays.until_runs(0, 1)
        arrays.work.annotate(before[0], {"test/stops-in": "4s"})
        arrays.delete("sweep-0")
        stops = arrays.eventually(
            lambda: r if (r := arrays.workload("sweep-0")).state == "stopping" else None,
            what="it stops",
        )
        assert stops.reason.text == "deleted by its user"

        after = arrays.until_runs(1, 2)
        assert after[1] == before[1]
        with pytest.raises(NotFound):
            arrays.workload("sweep-0")
        assert arrays.workload("sweep").states == {"running": 2}
        for name in after.values():
            arrays.work.finish(name)
        status = arrays.until_over()
        arrays.eventually(lambda: arrays.workload("sweep").state == "succeeded", what="it is over")
    assert (status["failedIndexes"], status["completedIndexes"]) == ("0", "1,2")


def test_deleted_waiting_array_element_is_never_bound_to_a_node(arrays):
    with arrays.start():
        arrays.submit(5)
        first = arrays.until_runs(0, 1)
        for name in ("sweep-2", "sweep-4"):
            arrays.delete(name)
        assert arrays.states()["sweep"] == "queued 1"
        arrays.work.finish(first[0])
        second = arrays.until_runs(1, 3)
        for name in second.values():
            arrays.work.finish(name)
        status = arrays.until_over()
        assert arrays.workload("sweep").states == {"succeeded": 3}
        nodes = {
            p["metadata"]["annotations"][INDEX]: p["spec"].get("nodeName")
            for p in arrays.work.pods(JOB)
        }
    assert (status["completedIndexes"], status["failedIndexes"]) == ("0,1,3", "2,4")
    assert {index: node for index, node in nodes.items() if index in "24"} == {
        "2": None,
        "4": None,
    }


def test_array_is_deleted_with_its_last_element(arrays):
    with arrays.start():
        arrays.work.create(pod("owner", 2, project="bob"))
        arrays.submit(2)
        for name in ("sweep-0", "sweep-1"):
            arrays.delete(name)
        arrays.eventually(lambda: arrays.states() == {}, what="nothing is listed")
        with pytest.raises(NotFound):
            arrays.workload("sweep")


def test_restarted_scheduler_knows_paused_and_deleted_array_elements(arrays):
    with arrays.start():
        arrays.submit(5)
        before = arrays.until_runs(0, 1)
        arrays.work.create(pod("owner", project="bob"))
        arrays.until_runs(0)
        arrays.until_only_running()
        arrays.delete("sweep-3")
        known = arrays.states()
    with arrays.start():
        arrays.eventually(lambda: arrays.states() == known, what="the same is listed")
        arrays.work.delete("owner")
        assert arrays.until_runs(0, 1)[0] == before[0]
        arrays.work.finish(before[0])
        arrays.until_runs(1, 2)


def test_element_pause_cut_off_by_a_crash_is_completed_by_the_next_scheduler(arrays):
    with FaultyServer(arrays.rights) as server, arrays.start(server.kubeconfig):
        arrays.submit(3)
        before = arrays.until_runs(0, 1)
        server.die_at("POST", "/eviction")
        arrays.work.create(pod("owner", project="bob"))
        arrays.eventually(lambda: server.is_down, what="the first one dies")
    assert arrays.runs() == before
    with arrays.start():
        arrays.eventually(lambda: arrays.work.node_of("owner"), what="bob has his GPU")
        assert arrays.until_runs(0)[0] == before[0]
        arrays.work.delete("owner")
        again = arrays.until_runs(0, 1)
        notes = arrays.work.pod(again[1])["metadata"]["annotations"]
    assert notes["runai/resumed"] == "1"
    assert arrays.status().get("failed", 0) == 0


def test_element_deletion_cut_off_by_a_crash_is_completed_by_the_next_scheduler(arrays):
    with FaultyServer(arrays.rights) as server, arrays.start(server.kubeconfig):
        arrays.submit(3)
        before = arrays.until_runs(0, 1)
        server.die_at("PATCH", f"{before[0]}/status")
        with contextlib.suppress(RunaiError):  # its Event finds no server
            arrays.delete("sweep-0")
        arrays.eventually(lambda: server.is_down, what="the first one dies")
    assert arrays.runs() == before
    with arrays.start():
        assert arrays.until_runs(1, 2)[1] == before[1]
        assert arrays.states() == {"sweep-1": "running 1", "sweep-2": "running 1"}


def test_failed_array_element_is_retried_without_a_restart_of_running_elements(arrays):
    with arrays.start():
        arrays.submit(2, backoff_limit=1)
        first = arrays.until_runs(0, 1)
        arrays.work.finish(first[0], 3)
        arrays.eventually(
            lambda: arrays.workload("sweep-0").state == "retrying", what="it waits for its turn"
        )
        again = arrays.eventually(
            lambda: r if 0 in (r := arrays.runs()) else None, what="it is tried again"
        )
        assert again[1] == first[1]
        arrays.work.finish(again[0], 4)
        record = arrays.eventually(
            lambda: r if (r := arrays.workload("sweep-0")).state == "failed" else None,
            what="it has failed",
        )
        assert (record.exit_code, record.failures, record.attempts) == (4, 2, 2)
        assert record.reason.text == "ended with exit code 4"
        assert record.finished is not None


def test_array_of_ten_thousand_elements_starts_with_few_api_requests(arrays):
    with FaultyServer(arrays.rights) as server, arrays.start(server.kubeconfig):
        arrays.scheduler.call(arrays.scheduler.cluster.names())
        begun = len(server.requests)
        arrays.submit(10_000)
        arrays.until_runs(0, 1)
        assert arrays.workload("sweep").size == 9_998
        assert len(server.requests) - begun < 100


@pytest.mark.parametrize("verb", ["suspend", "resume", "scale"])
def test_suspend_resume_and_scale_of_a_single_element_are_refused(arrays, verb):
    with arrays.start():
        arrays.submit(3)
        arrays.until_runs(0, 1)
        more = {"workers": 2, "min_workers": None} if verb == "scale" else {}
        call = getattr(arrays.scheduler.cluster, verb)
        with pytest.raises(Conflict, match="is an element of an array") as refused:
            arrays.scheduler.call(call("patty/sweep-1", by="patty", **more))
    assert refused.value.code == "in_array"


@pytest.mark.parametrize(
    "fields",
    [{"workers": 2, "min_workers": 2}, {"elastic": True, "gpus_max": MilliGpu(2000)}],
    ids=["gangs", "elastic"],
)
def test_array_of_gangs_or_elastic_jobs_is_refused(arrays, fields):
    with arrays.start(), pytest.raises(InvalidRequest, match="an element is one pod"):
        arrays.submit(3, **fields)
