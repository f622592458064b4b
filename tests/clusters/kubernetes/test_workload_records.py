"""Successive records: unchanged ones are the same objects, and equal a fresh build.

Pure: pods come, are bound, stop, end and go as drawn by Hypothesis, without a control plane.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.kubernetes.parsed_objects import a_job, a_pod
from runai.hub_service.clusters.kubernetes.objects.container_starts import obstacle
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import read_demands
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import DeviceIds
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import NominatedPlacement
from runai.hub_service.clusters.kubernetes.workloads.agent_allocations import AllocationBuilder
from runai.hub_service.clusters.kubernetes.workloads.workload_records import (
    ClusterState,
    RecordBuilder,
)
from runai.hub_service.model.records import ElasticState
from runai.hub_service.scheduler.model.snapshot import Reason, Stop, Wait

GANG = a_job("gang", 2)
GANGS = [GANG, a_job("gang", 2, is_suspended=True), a_job("gang", 2, succeeded=1)]
QUEUED_GANGS = [
    a_job("gang", 2, is_suspended=True, is_queued=True, starts=(1.0,), template=a_pod(
        "gang", uid=GANG.uid, kind="train", sentence=text))
    for text in ("it waits", "it was paused")
]  # fmt: skip

names = st.sampled_from(["a", "b", "c"])
pods = st.builds(
    lambda name, node, ended, deleted, up: a_pod(
        name,
        node=node,
        bound=1.0 if node else None,
        deleted=900.0 if deleted and node else None,
        is_finished=ended,
        exit_code=0 if ended else None,
        is_up=up and bool(node),
    ),
    names,
    st.sampled_from(["", "gpu-0", "gpu-1"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
workers = st.builds(
    lambda index, node: a_pod(f"gang-{index}", of=GANG, node=node, bound=1.0 if node else None),
    st.integers(0, 1),
    st.sampled_from(["", "gpu-0"]),
)
pod_lists = st.lists(pods | workers, max_size=5, unique_by=lambda pod: pod.uid)
workloads = st.sampled_from(["vision/lab.a", "vision/lab.gang"])
why = st.builds(lambda text: Reason(code="behind", rule="R9", text=text), names)
waits = st.builds(
    lambda of, reason, position: Wait(workload=of, reason=reason, position=position),
    workloads,
    why,
    st.integers(1, 2),
)
stops = st.builds(
    lambda of, reason: Stop(workload=of, worker=f"{of}-0", reason=reason), workloads, why
)
places = st.sampled_from(["uid-a", f"{GANG.uid}/0", f"{GANG.uid}/1"])
nominations = st.dictionaries(
    places, st.builds(NominatedPlacement, st.just("gpu-1"), st.sampled_from([(0,), (1,)]))
)


def cluster_state_of(
    active_pods: list[Pod],
    job: Job | None,
    device_ids: DeviceIds,
    decisions: list[Any],
    **fields: Any,
) -> ClusterState:
    return ClusterState(
        active_pods,
        {} if job is None else {job.uid: job},
        {},
        "default",
        devices=device_ids.update(active_pods),
        waits={decision.workload: decision for decision in decisions if isinstance(decision, Wait)},
        stops={decision.workload: decision for decision in decisions if isinstance(decision, Stop)},
        **fields,
    )


steps = st.tuples(
    pod_lists,
    st.sampled_from([None, *GANGS, *QUEUED_GANGS]),
    st.lists(waits | stops, max_size=2),
    nominations,
    st.sampled_from([{}, {GANG.uid: ElasticState()}, {GANG.uid: ElasticState(resizes=1)}]),
)


@given(st.lists(steps, min_size=1, max_size=5))
def test_reused_record_builder_builds_the_same_records_as_a_fresh_builder(
    cycles: list[Any],
) -> None:
    record_builder, allocation_builder, device_ids = (
        RecordBuilder(),
        AllocationBuilder(),
        DeviceIds(),
    )
    before: dict[str, Any] = {}
    cluster_state = cluster_state_of([], None, device_ids, [])
    for active_pods, job, decisions, nominated, elastic in cycles:
        cluster_state = cluster_state_of(
            active_pods, job, device_ids, decisions, nominations=nominated, elastic=elastic
        )
        records = record_builder.records(cluster_state)

        assert records == RecordBuilder().records(cluster_state)
        assert list(records) == list(RecordBuilder().records(cluster_state))
        assert allocation_builder.allocations_by_node(
            cluster_state
        ) == AllocationBuilder().allocations_by_node(cluster_state)
        before = records
    assert record_builder.records(cluster_state) is not before
    assert all(
        record is previous
        for record, previous in zip(
            record_builder.records(cluster_state).values(), before.values(), strict=True
        )
    )


@pytest.mark.parametrize(
    ("pod", "is_listed"),
    [
        pytest.param(a_pod("gang-0", of=GANG), False, id="waiting"),
        pytest.param(a_pod("gang-0", of=GANG, node="gpu-0"), True, id="running"),
        pytest.param(a_pod("gang-0", of=GANG, node="gpu-0", deleted=900.0), True, id="stopping"),
        pytest.param(
            a_pod("gang-0", of=GANG, node="gpu-0", is_finished=True, exit_code=0), False, id="ended"
        ),
        pytest.param(
            a_pod("kept", node="gpu-0", is_finished=True, exit_code=0), True, id="ended session"
        ),
    ],
)
def test_pod_of_a_deleted_job_is_a_workload_only_while_it_occupies_devices(
    pod: Pod, is_listed: bool
) -> None:
    """The control plane deletes a Job first, and the Job's pods after that."""
    assert len(RecordBuilder().records(cluster_state_of([pod], None, DeviceIds(), []))) == is_listed


SINCE = "2026-11-28T14:02:00Z"
SINCE_CLOCK = time.strftime("%H:%M", time.localtime(1_795_874_520))
READY = {"type": "PodReadyToStartContainers", "lastTransitionTime": SINCE}


@pytest.mark.parametrize(
    ("waiting", "ready_to_start", "text"),
    [
        pytest.param(
            {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "lab/gone"'},
            "True",
            'it does not run yet: ImagePullBackOff: Back-off pulling image "lab/gone"',
            id="image that is not there",
        ),
        pytest.param(
            {"reason": "RunContainerError", "message": "nvidia-container-cli: device error"},
            "True",
            "it does not run yet: RunContainerError: nvidia-container-cli: device error",
            id="device that the runtime refuses",
        ),
        pytest.param(
            {"reason": "ContainerCreating"},
            "True",
            f"its image lab/large is being pulled since {SINCE_CLOCK}",
            id="pull in progress",
        ),
        pytest.param(
            {"reason": "ContainerCreating"},
            "False",
            f"its volumes (data) or its network are not ready since {SINCE_CLOCK}",
            id="volume that is not mounted",
        ),
    ],
)
def test_record_of_a_bound_pod_that_does_not_run_names_the_obstacle(waiting, ready_to_start, text):
    status = {
        "phase": "Pending",
        "conditions": [{**READY, "status": ready_to_start}],
        "containerStatuses": [{"image": "lab/large", "state": {"waiting": waiting}}],
    }
    obstacles = obstacle(status, ["data"]), obstacle({**status, "phase": "Running"}, ["data"])
    pod = a_pod("a", node="gpu-0", bound=1.0, obstacle=obstacles[0])
    gang = a_pod("gang-0", of=GANG, node="gpu-0", bound=1.0, obstacle=obstacles[0])
    cluster_state = ClusterState([pod, gang], {GANG.uid: GANG}, {}, "default")

    records = RecordBuilder().records(cluster_state).values()

    assert obstacles == (text, "")
    assert [(r.state, r.reason and (r.reason.code, r.reason.text)) for r in records] == [
        ("starting", ("not_running", text))
    ] * 2


def test_record_of_an_adopted_pod_has_the_node_type_and_gpu_type_that_its_selector_names():
    selector = {"runai/node-type": "dgx", "nvidia.com/gpu.product": "NVIDIA-A100"}
    pod = a_pod("a", demands=read_demands({"nodeSelector": selector}))

    (record,) = RecordBuilder().records(ClusterState([pod], {}, {}, "default")).values()

    assert (record.spec.node_type, record.spec.gpu_types) == ("dgx", ("NVIDIA-A100",))
