"""Successive snapshots: unchanged parts are the same objects, and equal a fresh build.

Pure: pods come, are bound, stop and go as drawn by Hypothesis, without a control plane.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusters.kubernetes.parsed_objects import a_job, a_node, a_pod
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import Demands, Taint
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGrouping
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import DeviceIds
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import (
    NominatedPlacement,
    SnapshotBuilder,
    SnapshotInput,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Project, Snapshot

GANG = a_job("gang", 2)
NODES = ("gpu-0", "gpu-1")
GPUS = 3
CARDS = "rdma/hca"
TAINTS = (Taint("closed", "", "NoSchedule"),)

names = st.sampled_from(["a", "b", "c", "d"])
pods = st.builds(
    lambda name, node, gpus, cards, bound, deleted, scheduler: a_pod(
        name,
        node=node,
        gpus=gpus,
        demands=Demands(stock=((CARDS, cards),) if cards else ()),
        bound=float(bound) if node else None,
        deleted=900.0 if deleted and node else None,
        **({"scheduler": scheduler} if scheduler else {}),
    ),
    names,
    st.sampled_from(["", *NODES]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 5),
    st.booleans(),
    st.sampled_from(["", "", "default-scheduler"]),
)
workers = st.builds(
    lambda index, node: a_pod(f"gang-{index}", of=GANG, node=node, bound=1.0 if node else None),
    st.integers(0, 1),
    st.sampled_from(["", *NODES]),
)
pod_lists = st.lists(pods | workers, max_size=6, unique_by=lambda pod: pod.uid)


def build_input(active_pods: list[Pod], device_ids: DeviceIds, **fields: Any) -> SnapshotInput:
    return SnapshotInput(
        nodes=[a_node(name, GPUS, stock={CARDS: 2}) for name in NODES],
        pods=active_pods,
        groups=PodGrouping().groups(active_pods, {GANG.uid: GANG}, {}, "default"),
        projects=[Project(name="vision", quota=MilliGpu(4000))],
        devices=device_ids.update(active_pods),
        **fields,
    )


@given(
    st.lists(st.tuples(pod_lists, names, st.sampled_from([None, 950.0])), min_size=1, max_size=5)
)
def test_reused_snapshot_builder_builds_the_same_snapshot_as_a_fresh_builder(
    steps: list[tuple[list[Pod], str, float | None]],
) -> None:
    builder, device_ids = SnapshotBuilder(), DeviceIds()
    previous_snapshot = Snapshot()
    for now, (active_pods, nominated, since) in enumerate(steps):
        snapshot_input = build_input(
            active_pods,
            device_ids,
            nominations={f"uid-{nominated}": NominatedPlacement("gpu-0", (0,))},
            below_min_since={} if since is None else {"vision/lab.gang": since},
        )
        snapshot = builder.snapshot(now, snapshot_input)

        assert snapshot == SnapshotBuilder().snapshot(now, snapshot_input)
        old = {workload.name: workload for workload in previous_snapshot.workloads}
        for workload in snapshot.workloads:
            assert workload is old.get(workload.name) or workload != old.get(workload.name)
        previous_snapshot = snapshot


def test_changed_node_taints_rebuild_unchanged_pods_in_the_snapshot() -> None:
    builder, pod = SnapshotBuilder(), a_pod("a")
    anywhere = replace(build_input([pod], DeviceIds()), nodes=[a_node("gpu-0")])
    nowhere = replace(anywhere, nodes=[replace(anywhere.nodes[0], taints=TAINTS)])

    assert builder.snapshot(1, anywhere).workloads[0].workers[0].nodes is None
    assert builder.snapshot(2, nowhere).workloads[0].workers[0].nodes == ()


@given(st.lists(st.tuples(pod_lists, names, st.integers(0, GPUS - 1)), max_size=5))
def test_device_numbers_of_a_node_are_never_assigned_to_two_pods(
    steps: list[tuple[list[Pod], str, int]],
) -> None:
    device_ids = DeviceIds()
    for active_pods, name, device in steps:
        assigned = device_ids.update(active_pods)
        places = [(pod.node, number) for pod in active_pods for number in assigned.get(pod.uid, ())]

        assert all(count == 1 for count in Counter(places).values())
        assert all(
            len(assigned.get(pod.uid, ())) == (pod.gpus if pod.node else 0) for pod in active_pods
        )
        assert device_ids.update(list(active_pods)) == assigned
        device_ids.assign(f"uid-{name}", "gpu-0", (device,))
