"""Pods that their kubelet killed at the end of their grace period: their Job says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusters.kubernetes.parsed_objects import a_job, a_pod
from control_plane.lab import allow_jobs
from control_plane.process_kubelet import NODE, ProcessKubelet
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.objects.core_objects import read_pod
from runai.hub_service.clusters.kubernetes.workloads.workload_records import (
    ClusterState,
    record_of_job,
)
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU

GRACE_S = 3
KILL_MESSAGE = f"killed after its grace of {GRACE_S} s: its save may be cut; `--grace` gives more"
IGNORES_TERM = "trap '' TERM; echo > $0/ready-${RUNAI_INDEX:-0}; while :; do sleep 0.05; done"
EXITS_ON_TERM = (
    "trap 'exit 143' TERM; echo > $0/ready-${RUNAI_INDEX:-0}; while :; do sleep 0.05; done"
)
KILLS_ITSELF = EXITS_ON_TERM.replace("exit 143", "kill -9 $$")

DELETED_BY_USER = {"deletionTimestamp": "2026-11-29T10:00:30Z", "deletionGracePeriodSeconds": 30}
DELETED_BY_KUBELET = {"deletionTimestamp": "2026-11-29T10:00:00Z", "deletionGracePeriodSeconds": 0}


@pytest.mark.parametrize(
    ("deletion", "exit_code", "reason", "finished_at", "is_killed"),
    [  # a grace of 30 s, which ends at 10:00:30
        (DELETED_BY_USER, 137, "Error", "10:00:30", True),
        (DELETED_BY_USER, 137, "Error", "10:00:28", True),
        (DELETED_BY_KUBELET, 137, "Error", "10:00:31", True),
        (DELETED_BY_USER, 137, "Error", "10:00:20", False),
        (DELETED_BY_KUBELET, 137, "Error", "10:00:20", False),
        (DELETED_BY_USER, 137, "OOMKilled", "10:00:30", False),
        (DELETED_BY_USER, 143, "Error", "10:00:30", False),
        ({}, 137, "Error", "10:00:30", False),
    ],
    ids=[
        "at the end of the grace",
        "two seconds before the end, by clock skew",
        "at the end, deleted by the kubelet",
        "long before the end",
        "long before the end, deleted by the kubelet",
        "out of memory",
        "exit code of SIGTERM",
        "not deleted",
    ],
)
def test_pod_counts_as_killed_only_after_a_fatal_signal_at_the_end_of_its_grace(
    deletion, exit_code, reason, finished_at, is_killed
):
    ended = {"exitCode": exit_code, "reason": reason, "finishedAt": f"2026-11-29T{finished_at}Z"}
    named = {
        "name": "exp",
        "namespace": "lab",
        "uid": "u",
        "creationTimestamp": "2026-11-29T09:00:00Z",
    }

    pod = read_pod(
        {
            "metadata": named | deletion,
            "spec": {"containers": [], "terminationGracePeriodSeconds": 30},
            "status": {"containerStatuses": [{"state": {"terminated": ended}}]},
        }
    )

    assert pod.is_killed is is_killed


@pytest.mark.parametrize(
    ("starts", "pauses", "killed", "is_killed"),
    [
        ((100.0,), (200.5,), (), False),
        ((100.0,), (200.5,), (203.0,), True),
        ((100.0,), (200.5,), (200.0,), True),
        ((100.0,), (), (203.0,), True),
        ((100.0, 203.2), (200.5,), (203.0,), False),
        ((100.0,), (200.5, 300.5), (203.0,), False),
    ],
    ids=["never", "pause", "pause without grace", "suspension", "later start", "later pause"],
)
def test_workload_record_reports_a_killed_pod_until_the_next_start_or_pause(
    starts, pauses, killed, is_killed
):
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("train",))
    job = a_job("exp", starts=starts, pauses=pauses, killed=killed, spec=spec)
    foreign, state = replace(job, spec=None), ClusterState((), {}, {}, "default")

    assert record_of_job(job, (), state).killed is is_killed
    assert not record_of_job(foreign, (), state).killed


def test_workload_record_reports_a_killed_pod_before_its_annotation_is_written():
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("train",))
    job = a_job("exp", starts=(100.0,), pauses=(200.5,), spec=spec)
    fields = {"is_finished": True, "is_killed": True, "ended": 203.0, "deleted": 203.0}

    record = record_of_job(job, [a_pod("exp-0", of=job, **fields)], ClusterState((), {}, {}, ""))

    assert record.killed


class Clock:
    """The real time, and what a test adds to it."""

    ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class RunningJob:
    """A scheduler, and a node of three GPUs that runs the programs of pods."""

    def __init__(self, scheduler: Scheduler, clock: Clock, place: Path, eventually: Any) -> None:
        self.scheduler, self.clock, self.place = scheduler, clock, place
        self.eventually = eventually

    def submit(self, program: str, workers: int = 1, **fields: Any) -> None:
        """Submit a job with a grace of `GRACE_S`; return when its traps are set."""
        command = ("sh", "-c", program, str(self.place))
        known: dict[str, Any] = {"gpus": WHOLE_GPU, "image": "example/train"}
        named = WorkloadSpec("vision", "exp", "ana", "job", command, workers=workers)
        spec = replace(
            named, **(known | {"grace_seconds": GRACE_S, "min_workers": workers} | fields)
        )
        self.scheduler.call(self.scheduler.cluster.submit([spec]))
        for index in range(workers):
            self.eventually((self.place / f"ready-{index}").exists, what=f"{index} is ready")

    def wait_for_record(self, **fields: Any) -> WorkloadRecord:
        """Wait until the job's record has these values."""

        def found() -> WorkloadRecord | None:
            record = self.scheduler.call(self.scheduler.cluster.workload("vision/exp"))
            return record if {name: getattr(record, name) for name in fields} == fields else None

        record: WorkloadRecord = self.eventually(found, what=f"its record has {fields}")
        return record

    def kill_messages(self) -> list[str]:
        """Return the sentences on killed pods in its history."""
        history = self.scheduler.call(self.scheduler.cluster.history("vision/exp"))
        return [event.text for event in history if event.kind == "exited"]


@pytest.fixture
def job(lab: Any, kubeconfig: Any, tmp_path: Path, eventually: Any) -> Iterator[RunningJob]:
    allow_jobs(lab.plane, lab.namespace.name)
    clock = Clock()
    (tmp_path / "node").mkdir()
    with ProcessKubelet(lab.plane, tmp_path / "node", gpus=3) as kubelet:
        lab.node(NODE, gpus=3, status=kubelet.status)
        lab.project("vision", quota=3)
        with Scheduler(kubeconfig, namespace=lab.namespace.name, clock=clock) as scheduler:
            yield RunningJob(scheduler, clock, tmp_path, eventually)


def suspend(job: RunningJob) -> str:
    job.scheduler.call(job.scheduler.cluster.suspend("vision/exp", by="ana"))
    return "suspended"


def time_out(job: RunningJob) -> str:
    job.clock.ahead += 100
    return "timed_out"


@pytest.mark.kubernetes
@pytest.mark.parametrize("stop", [suspend, time_out])
def test_job_history_reports_a_pod_killed_by_a_stop(job, stop):
    job.submit(IGNORES_TERM, max_runtime=90)

    job.wait_for_record(state=stop(job), killed=True)

    job.eventually(lambda: job.kill_messages() == [f"was {KILL_MESSAGE}"], what="history")


@pytest.mark.kubernetes
@pytest.mark.parametrize("program", [EXITS_ON_TERM, KILLS_ITSELF], ids=["exit code", "kill -9"])
def test_job_history_omits_programs_that_end_by_themselves_on_a_stop(job, program):
    job.submit(program, grace_seconds=300)  # a busy machine is not that slow

    record = job.wait_for_record(state=suspend(job))

    assert (record.killed, job.kill_messages()) == (False, [])


@pytest.mark.kubernetes
def test_job_history_names_the_worker_killed_by_an_elastic_shrink(job):
    job.submit(IGNORES_TERM, workers=3, min_workers=1, elastic=True)

    arguments = {"workers": 2, "min_workers": None, "by": "ana"}
    job.scheduler.call(job.scheduler.cluster.scale("vision/exp", **arguments))

    job.wait_for_record(state="running", killed=True)
    job.eventually(lambda: job.kill_messages() == [f"worker 2 was {KILL_MESSAGE}"], what="history")
