"""The snapshot of a Kubernetes cluster for the core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters.kubernetes.parsed_objects import a_job, a_node, a_pod
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    PRIORITIES,
    SCHEDULER,
    read_pod,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import PAUSES, suspend_patch, times_noted
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import Taint
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGrouping
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import DeviceIds
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import (
    NominatedPlacement,
    SnapshotBuilder,
    SnapshotInput,
)
from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Project, Snapshot, WorkerState

VISION = Project(name="vision", quota=MilliGpu(4000))
FOREIGN = "default-scheduler"


def build_snapshot(*pods, nodes=None, jobs=(), device_ids=None, **fields) -> Snapshot:
    snapshot_input = SnapshotInput(
        nodes=nodes or [a_node("gpu-0")],
        pods=pods,
        groups=PodGrouping().groups(pods, {job.uid: job for job in jobs}, {}, "default"),
        projects=[VISION],
        devices=(device_ids or DeviceIds()).update(pods),
        **fields,
    )
    return SnapshotBuilder().snapshot(1000.0, snapshot_input)


def started_workers(snapshot: Snapshot) -> list[str]:
    return [d.worker for d in decide(snapshot).decisions if d.kind == "start"]


def test_devices_of_other_schedulers_pods_are_unavailable_in_the_snapshot():
    foreign = a_pod("theirs", scheduler=FOREIGN, node="gpu-0", bound=1.0)

    snapshot = build_snapshot(foreign, a_pod("one"), a_pod("two", created=101.0))

    assert snapshot.nodes[0].broken_devices == (0,)
    assert started_workers(snapshot) == ["lab/one"]


def test_cpu_of_other_schedulers_pods_is_unavailable_in_the_snapshot():
    foreign = a_pod("theirs", scheduler=FOREIGN, node="gpu-0", gpus=0, cpu_milli=31_000)

    snapshot = build_snapshot(foreign, a_pod("hungry", cpu_milli=2_000))

    assert snapshot.nodes[0].cpu_milli == 1_000  # of 32 CPUs
    assert started_workers(snapshot) == []


def test_failed_gpu_device_is_not_allocated_again():
    pods = [a_pod(f"p{i}", node="gpu-0", bound=float(i)) for i in range(3)]
    device_ids = DeviceIds()
    device_ids.update(pods)

    # Of four devices one has failed; the pod with the lowest number has ended.
    snapshot = build_snapshot(
        *pods[1:], a_pod("a"), a_pod("b"), nodes=[a_node("gpu-0", 3)], device_ids=device_ids
    )

    assert len(started_workers(snapshot)) == 1


def test_pod_retains_its_device_ids_when_other_pods_end():
    device_ids, first, second = (
        DeviceIds(),
        a_pod("a", node="n", bound=1.0),
        a_pod("b", node="n", bound=2.0),
    )
    before = device_ids.update([first, second])

    assert device_ids.update([second]) == {second.uid: before[second.uid]}
    assert (
        device_ids.update([second, a_pod("c", node="n", bound=3.0)])[second.uid]
        == before[second.uid]
    )


def test_snapshot_shows_the_device_ids_that_a_plan_chose():
    device_ids, pod = DeviceIds(), a_pod("a", node="gpu-0", bound=1.0)
    device_ids.assign(pod.uid, "gpu-0", (1,))

    snapshot = build_snapshot(pod, device_ids=device_ids)

    assert snapshot.workloads[0].workers[0].devices == (1,)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        pytest.param({}, WorkerState.PENDING, id="pending"),
        pytest.param({"node": "gpu-0", "bound": 5.0}, WorkerState.RUNNING, id="running"),
        pytest.param(
            {"node": "gpu-0", "bound": 5.0, "deleted": 1030.0}, WorkerState.STOPPING, id="stopping"
        ),
    ],
)
def test_phase_of_a_pod_decides_its_worker_state_in_the_snapshot(fields, state):
    assert build_snapshot(a_pod("a", **fields)).workloads[0].workers[0].state is state


@pytest.mark.parametrize(
    ("pod_saves", "job_saves", "expected"),
    [(False, False, False), (True, False, True), (False, True, True)],
    ids=["neither", "pod", "Job"],
)
def test_checkpoint_annotation_of_pod_or_job_is_in_the_snapshot(pod_saves, job_saves, expected):
    job = a_job("j", 2)
    job = replace(job, template=replace(job.template, saves=job_saves))
    pods = [a_pod(f"j-{i}", of=job, saves=pod_saves) for i in range(2)]

    assert build_snapshot(*pods, jobs=[job]).workloads[0].saves is expected


@pytest.mark.parametrize("kind", ["train", "build", "inference"])
@pytest.mark.parametrize(
    ("spec", "annotations", "expected"),
    [
        ({}, {}, None),
        ({"priority": 0}, {}, None),
        ({"priority": 0, "priorityClassName": "idle"}, {}, 0),
        ({"priority": 7, "priorityClassName": "small"}, {}, 7),
        ({"priority": 0, "priorityClassName": "idle"}, {"runai/priority": "60"}, 60),
        ({}, {"runai/priority": "0"}, 0),
    ],
    ids=["none", "no class", "class of 0", "class of 7", "class and annotation", "annotation of 0"],
)
def test_pod_priority_is_that_of_its_annotation_or_else_its_class_or_kind(
    kind, spec, annotations, expected
):
    snapshot = read_pod(
        {
            "metadata": {
                "uid": "u",
                "namespace": "lab",
                "name": "a",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"runai/kind": kind},
                "annotations": annotations,
            },
            "spec": {"containers": [], "schedulerName": SCHEDULER, **spec},
        }
    )

    assert snapshot.priority == (PRIORITIES[kind] if expected is None else expected)


@pytest.mark.parametrize("priority", [0, 100, 125])
def test_priority_of_a_session_is_in_the_snapshot(priority):
    assert build_snapshot(a_pod("a", priority=priority)).workloads[0].priority == priority


@pytest.mark.parametrize(
    ("min_workers", "expected"), [(1, 2), (0, None)], ids=["elastic job", "gang"]
)
def test_guaranteed_workers_annotation_applies_to_elastic_jobs_only(min_workers, expected):
    job = a_job("j", 2, min_workers=min_workers)
    job = replace(job, template=replace(job.template, guaranteed=3))
    pods = [a_pod(f"j-{i}", of=job) for i in range(2)]

    assert build_snapshot(*pods, jobs=[job]).workloads[0].guaranteed_workers == expected


def test_nominated_devices_of_a_waiting_pod_are_reserved_in_the_snapshot():
    pod = a_pod("a")

    worker = (
        build_snapshot(pod, nominations={pod.uid: NominatedPlacement("gpu-0", (1,))})
        .workloads[0]
        .workers[0]
    )

    assert (worker.state, worker.node, worker.devices) == (WorkerState.RESERVED, "gpu-0", (1,))


def test_gang_is_omitted_from_the_snapshot_until_it_is_whole():
    gang = a_job("train", workers=2)
    first, second = a_pod("train-0", of=gang), a_pod("train-1", of=gang)

    assert build_snapshot(first, jobs=[gang]).workloads == ()
    assert sorted(started_workers(build_snapshot(first, second, jobs=[gang]))) == [
        "vision/lab.train-0",
        "vision/lab.train-1",
    ]


def test_running_worker_of_an_incomplete_gang_is_in_the_snapshot():
    gang = a_job("train", workers=2)
    up = a_pod("train-0", of=gang, node="gpu-0", bound=5.0)

    assert build_snapshot(up, jobs=[gang]).workloads[0].workers[0].state is WorkerState.RUNNING


def test_snapshot_omits_pods_with_unsupported_requests():
    assert build_snapshot(replace(a_pod("a"), unsupported="use a Job")).workloads == ()


def test_session_is_not_preemptible_and_a_job_is():
    job = a_job("train")

    snapshot = build_snapshot(a_pod("notebook"), a_pod("train-0", of=job), jobs=[job])

    assert {w.name: w.is_preemptible for w in snapshot.workloads} == {
        "vision/lab.notebook": False,
        "vision/lab.train": True,
    }


def test_snapshot_opens_only_nodes_with_tolerated_taints_to_a_worker():
    tainted = a_node("gpu-1", taints=(Taint("spot", "", "NoSchedule"),))

    snapshot = build_snapshot(a_pod("a"), nodes=[a_node("gpu-0"), tainted])

    assert snapshot.workloads[0].workers[0].nodes == ("gpu-0",)


def test_cordoned_node_gets_no_new_pod():
    assert started_workers(build_snapshot(a_pod("a"), nodes=[a_node("gpu-0", is_open=False)])) == []


def test_pod_on_a_deleted_node_does_not_block_other_pods():
    lost = a_pod("lost", node="gpu-9", bound=5.0)

    assert started_workers(build_snapshot(lost, a_pod("a"))) == ["lab/a"]


def test_move_of_a_whole_job_counts_as_a_pause_in_the_snapshot():
    job = a_job("j")
    pod = a_pod("j-0", of=job, index=0, node="n", bound=3.0)
    steps = suspend_patch(job, now=7.0, why="moved to n2 (R10)", priority=50, moved="moved to n2")
    annotations = {step["path"].rpartition("/")[2]: step["value"] for step in steps}
    times = times_noted({PAUSES: annotations["runai~1pauses"]}, PAUSES)

    assert build_snapshot(pod, jobs=[replace(job, pauses=times)]).workloads[0].pauses == (7,)
