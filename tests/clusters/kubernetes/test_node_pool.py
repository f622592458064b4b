"""Schedulers side by side: one for each pool of nodes, and one for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from control_plane.device_plugin import DevicePlugin
from control_plane.lab import PROJECTS, ClusterLab, allow_jobs
from control_plane.objects import Namespace, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Conflict

LABEL = "example.com/pool"
POOL_A, POOL_B, OUTSIDE_POOLS = (f"{LABEL}=a", f"{LABEL}=b", f"!{LABEL}")


@pytest.fixture
def pools(lab: ClusterLab) -> ClusterLab:
    """Two nodes of two GPUs in pools of their own, and one in none; a project each."""
    for node, labels in (("gpu-a", {LABEL: "a"}), ("gpu-b", {LABEL: "b"}), ("gpu-0", {})):
        lab.node(node, gpus=2, labels={**labels, "nvidia.com/gpu.memory": "16000"})
    for name, labels in (("vision-a", {LABEL: "a"}), ("vision-b", {LABEL: "b"}), ("vision", {})):
        lab.project(name, quota=2, labels=labels)
    return lab


def in_pool(made: dict[str, Any], pool: str) -> dict[str, Any]:
    """Return a pod, or a Job with its pods, of a pool."""
    marked: dict[str, Any] = dict(NodePool(LABEL, pool).with_labels(made))
    return marked


def nodes(work: Namespace, *names: str) -> list[str]:
    return [work.node_of(name) for name in names]


@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_scheduler_binds_pods_of_its_pool_to_nodes_of_its_pool(pools, kubeconfig, eventually):
    work = pools.namespace
    for name in ("a-1", "a-2", "a-3"):
        work.create(in_pool(pod(name, project="vision-a"), "a"))
    work.create(in_pool(pod("b-1", project="vision-b"), "b"))
    work.create(pod("of-none", project="vision"))

    with Scheduler(kubeconfig, pool=POOL_A) as first, Scheduler(kubeconfig, pool=POOL_B) as second:
        eventually(lambda: nodes(work, "a-1", "a-2", "b-1") == ["gpu-a", "gpu-a", "gpu-b"])
        eventually(lambda: wait_message(work.pod("a-3")), what="the third pod has a reason to wait")
        listed = [s.call(s.cluster.workloads()) for s in (first, second)]
        assert [{r.spec.project for r in r} for r in listed] == [
            {"vision-a"},
            {"vision-b"},
        ]
        assert [list(s.call(s.cluster.devices())) for s in (first, second)] == [
            ["gpu-a"],
            ["gpu-b"],
        ]
        assert not work.node_of("of-none"), "no scheduler has the pods in no pool"
        with Scheduler(kubeconfig, pool=OUTSIDE_POOLS):
            eventually(lambda: work.node_of("of-none") == "gpu-0", what="the pod is bound")
        assert not work.node_of("a-3"), "room in another pool is not for this pod"
        work.delete("a-1")
        eventually(lambda: work.node_of("a-3") == "gpu-a", what="the pod runs in its own pool")
        assert not [*first.refused, *second.refused]


@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_node_pool_schedulers_reserve_shared_devices_of_their_own_pool(
    pools, kubeconfig, eventually
):
    work, plane = pools.namespace, pools.plane
    plugin = DevicePlugin(plane, {"gpu-a": ["GPU-a0", "GPU-a1"], "gpu-b": ["GPU-b0", "GPU-b1"]})
    half = {"annotations": {"gpu-fraction": "0.5"}}
    for name, pool in (("a-1", "a"), ("a-2", "a"), ("b-1", "b")):
        work.create(in_pool(pod(name, 0, project=f"vision-{pool}", **half), pool))

    def reservations() -> dict[str, str]:
        found = plane.request("GET", "/api/v1/namespaces/runai-reservation/pods")["items"]
        return {
            p["spec"].get("nodeName", ""): p["metadata"]["labels"].get(LABEL, "") for p in found
        }

    def all_are_bound() -> bool:
        plugin.sync_pods()
        return nodes(work, "a-1", "a-2", "b-1") == ["gpu-a", "gpu-a", "gpu-b"]

    with Scheduler(kubeconfig, pool=POOL_A), Scheduler(kubeconfig, pool=POOL_B):
        eventually(all_are_bound, what="all share")

    assert reservations() == {"gpu-a": "a", "gpu-b": "b"}


@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_project_and_job_made_through_a_node_pools_scheduler_belong_to_that_pool(
    pools, kubeconfig, eventually
):
    work = pools.namespace
    allow_jobs(pools.plane, work.name)
    spec = WorkloadSpec("vision-a", "train", "ana", "job", ("true",), gpus=MilliGpu(1000))

    with Scheduler(kubeconfig, pool=POOL_A) as scheduler, Scheduler(kubeconfig, pool=POOL_B):
        cluster = scheduler.cluster
        scheduler.call(cluster.put_project(ProjectSpec("new-a", quota=MilliGpu(1000))))
        scheduler.call(cluster.put_project(ProjectSpec("new-a", quota=MilliGpu(0))))
        with pytest.raises(Conflict, match="There is a project vision-b already, of another pool"):
            scheduler.call(cluster.put_project(ProjectSpec("vision-b", quota=MilliGpu(1000))))
        cluster.submissions._namespace, cluster.submissions._image = work.name, "example/train"
        (record,) = scheduler.call(cluster.submit([spec]))

        def state() -> str:
            return str(scheduler.call(cluster.workload(record.id)).state)

        eventually(lambda: state() == "running", what="the pod runs")
        (worker,) = scheduler.call(cluster.workload(record.id)).workers
        scheduler.call(cluster.delete(record.id, by="ana"))

    assert worker.node == "gpu-a"
    project = pools.plane.request("GET", f"{PROJECTS}/new-a")
    assert (project["metadata"]["labels"], project["spec"]["quota"]) == ({LABEL: "a"}, "0")


@pytest.mark.parametrize(
    ("setting", "selector", "members"),
    [
        pytest.param("", "", {"a", "b", "none"}, id="no setting"),
        pytest.param(POOL_A, POOL_A, {"a"}, id="one pool"),
        pytest.param(OUTSIDE_POOLS, OUTSIDE_POOLS, {"none"}, id="outside of pools"),
        pytest.param("pool=b", "pool=b", set(), id="label without a domain"),
    ],
)
def test_node_pool_selects_objects_by_its_label(setting: str, selector: str, members: set[str]):
    pool = NodePool.parse(setting)
    objects = {"a": {LABEL: "a"}, "b": {LABEL: "b"}, "none": {"other": "a"}}

    assert pool.selector == selector
    assert {
        n for n, labels in objects.items() if pool.has({"metadata": {"labels": labels}})
    } == members


@pytest.mark.parametrize(
    "setting", ["pool", "pool=", "=a", "!", "!a=b", "pool=a b", "pool=a,zone=b", "pool!=a", "/p=a"]
)
def test_node_pool_parse_refuses_invalid_labels(setting: str):
    with pytest.raises(ValueError, match="neither KEY=VALUE nor !KEY"):
        NodePool.parse(setting)


def test_node_pool_skips_waiting_pods_of_other_pools_and_reads_running_as_foreign(
    lab_pod: Callable[..., dict[str, Any]],
):
    pool = NodePool(LABEL, "a")

    own_pod = pool.read_pod(lab_pod("ours", {LABEL: "a"}))
    waiting_pod = pool.read_pod(lab_pod("waits", {LABEL: "b"}))
    running_pod = pool.read_pod(lab_pod("runs", {LABEL: "b"}, node="gpu-a"))

    assert own_pod is not None
    assert own_pod.scheduler == SCHEDULER
    assert waiting_pod is None, "a waiting pod occupies no node"
    assert running_pod is not None
    assert running_pod.scheduler != SCHEDULER, "a running pod occupies its node, whatever its pool"


@pytest.fixture
def lab_pod() -> Callable[..., dict[str, Any]]:
    def build_pod(name: str, labels: dict[str, str], node: str = "") -> dict[str, Any]:
        found = pod(name, project="vision", labels=labels)
        metadata = {"uid": name, "namespace": "lab", "creationTimestamp": "2026-01-01T00:00:00Z"}
        found["metadata"] |= metadata
        found["spec"] |= {"nodeName": node} if node else {}
        return found

    return build_pod
