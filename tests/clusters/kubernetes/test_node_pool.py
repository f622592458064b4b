"""Schedulers side by side: one for each pool of nodes, and one for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusters.kubernetes.sharing_world import sentence
from control_plane.device_plugin import DevicePlugin
from control_plane.lab import PROJECTS, ClusterLab, allow_jobs
from control_plane.objects import Namespace, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Conflict

KEY = "example.com/pool"
A, B, REST = (f"{KEY}=a", f"{KEY}=b", f"!{KEY}")


@pytest.fixture
def pools(lab: ClusterLab) -> ClusterLab:
    """Two nodes of two GPUs in pools of their own, and one in none; a project each."""
    for node, labels in (("gpu-a", {KEY: "a"}), ("gpu-b", {KEY: "b"}), ("gpu-0", {})):
        lab.node(node, gpus=2, labels={**labels, "nvidia.com/gpu.memory": "16000"})
    for name, labels in (("vision-a", {KEY: "a"}), ("vision-b", {KEY: "b"}), ("vision", {})):
        lab.project(name, quota=2, labels=labels)
    return lab


def of_pool(made: dict[str, Any], pool: str) -> dict[str, Any]:
    """Return a pod, or a Job with its pods, of a pool."""
    marked: dict[str, Any] = dict(NodePool(KEY, pool).with_labels(made))
    return marked


def nodes(work: Namespace, *names: str) -> list[str]:
    return [work.node_of(name) for name in names]


@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_scheduler_binds_pods_of_its_pool_to_nodes_of_its_pool(pools, rights, eventually):
    work = pools.namespace
    for name in ("a-1", "a-2", "a-3"):
        work.create(of_pool(pod(name, project="vision-a"), "a"))
    work.create(of_pool(pod("b-1", project="vision-b"), "b"))
    work.create(pod("of-none", project="vision"))

    with Scheduler(rights, pool=A) as first, Scheduler(rights, pool=B) as second:
        eventually(lambda: nodes(work, "a-1", "a-2", "b-1") == ["gpu-a", "gpu-a", "gpu-b"])
        eventually(
            lambda: sentence(work.pod("a-3")), what="who has no room in his pool is told why"
        )
        listings = [s.call(s.cluster.workloads()) for s in (first, second)]
        assert [{r.spec.project for r in each} for each in listings] == [{"vision-a"}, {"vision-b"}]
        assert [list(s.call(s.cluster.devices())) for s in (first, second)] == [
            ["gpu-a"],
            ["gpu-b"],
        ]
        assert not work.node_of("of-none"), "nobody's pods are left to whoever has the rest"
        with Scheduler(rights, pool=REST):
            eventually(lambda: work.node_of("of-none") == "gpu-0", what="who has the rest binds it")
        assert not work.node_of("a-3"), "other pools have room, and it is not for him"
        work.delete("a-1")
        eventually(lambda: work.node_of("a-3") == "gpu-a", what="it has a place in its own pool")
        assert not [*first.refused, *second.refused]


@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_node_pool_schedulers_reserve_shared_devices_of_their_own_pool(pools, rights, eventually):
    work, plane = pools.namespace, pools.plane
    plugin = DevicePlugin(plane, {"gpu-a": ["GPU-a0", "GPU-a1"], "gpu-b": ["GPU-b0", "GPU-b1"]})
    half = {"annotations": {"gpu-fraction": "0.5"}}
    for name, pool in (("a-1", "a"), ("a-2", "a"), ("b-1", "b")):
        work.create(of_pool(pod(name, 0, project=f"vision-{pool}", **half), pool))

    def reservations() -> dict[str, str]:
        found = plane.request("GET", "/api/v1/namespaces/runai-reservation/pods")["items"]
        return {p["spec"].get("nodeName", ""): p["metadata"]["labels"].get(KEY, "") for p in found}

    def all_are_bound() -> bool:
        plugin.sync_pods()
        return nodes(work, "a-1", "a-2", "b-1") == ["gpu-a", "gpu-a", "gpu-b"]

    with Scheduler(rights, pool=A), Scheduler(rights, pool=B):
        eventually(all_are_bound, what="all share")

    assert reservations() == {"gpu-a": "a", "gpu-b": "b"}


@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_project_and_job_made_through_a_node_pools_scheduler_belong_to_that_pool(
    pools, rights, eventually
):
    work = pools.namespace
    allow_jobs(pools.plane, work.name)
    spec = WorkloadSpec("vision-a", "train", "ana", "job", ("true",), gpus=MilliGpu(1000))

    with Scheduler(rights, pool=A) as scheduler, Scheduler(rights, pool=B):
        cluster = scheduler.cluster
        pools._projects.append("new-a")
        scheduler.call(cluster.put_project(ProjectSpec("new-a", quota=MilliGpu(1000))))
        scheduler.call(cluster.put_project(ProjectSpec("new-a", quota=MilliGpu(0))))
        with pytest.raises(Conflict, match="There is a project vision-b already, of another pool"):
            scheduler.call(cluster.put_project(ProjectSpec("vision-b", quota=MilliGpu(1000))))
        cluster.submissions._namespace, cluster.submissions._image = work.name, "example/train"
        (made,) = scheduler.call(cluster.submit([spec]))

        def state() -> str:
            return str(scheduler.call(cluster.workload(made.id)).state)

        eventually(lambda: state() == "running", what="it runs")
        (worker,) = scheduler.call(cluster.workload(made.id)).workers
        scheduler.call(cluster.delete(made.id, by="ana"))

    assert worker.node == "gpu-a"
    found = pools.plane.request("GET", f"{PROJECTS}/new-a")
    assert (found["metadata"]["labels"], found["spec"]["quota"]) == ({KEY: "a"}, "0")


@pytest.mark.parametrize(
    ("text", "selector", "has"),
    [
        pytest.param("", "", {"a", "b", "none"}, id="everything"),
        pytest.param(A, A, {"a"}, id="one"),
        pytest.param(REST, REST, {"none"}, id="rest"),
        pytest.param("pool=b", "pool=b", set(), id="key-without-domain"),
    ],
)
def test_node_pool_selects_objects_by_its_label(text: str, selector: str, has: set[str]):
    pool = NodePool.parse(text)
    objects = {"a": {KEY: "a"}, "b": {KEY: "b"}, "none": {"other": "a"}}

    assert pool.selector == selector
    assert {n for n, labels in objects.items() if pool.has({"metadata": {"labels": labels}})} == has


@pytest.mark.parametrize(
    "text", ["pool", "pool=", "=a", "!", "!a=b", "pool=a b", "pool=a,zone=b", "pool!=a", "/p=a"]
)
def test_node_pool_parse_refuses_invalid_labels(text: str):
    with pytest.raises(ValueError, match="neither KEY=VALUE nor !KEY"):
        NodePool.parse(text)


def test_node_pool_skips_waiting_pods_of_other_pools_and_reads_running_as_foreign(
    lab_pod: Callable[..., dict[str, Any]],
):
    pool = NodePool(KEY, "a")

    ours = pool.read_pod(lab_pod("ours", {KEY: "a"}))
    waits = pool.read_pod(lab_pod("waits", {KEY: "b"}))
    runs = pool.read_pod(lab_pod("runs", {KEY: "b"}, node="gpu-a"))

    assert ours is not None
    assert ours.scheduler == SCHEDULER
    assert waits is None, "it takes room nowhere"
    assert runs is not None
    assert runs.scheduler != SCHEDULER, "its node may have been ours only since"


@pytest.fixture
def lab_pod() -> Callable[..., dict[str, Any]]:
    def build_pod(name: str, labels: dict[str, str], node: str = "") -> dict[str, Any]:
        found = pod(name, project="vision", labels=labels)
        metadata = {"uid": name, "namespace": "lab", "creationTimestamp": "2026-01-01T00:00:00Z"}
        found["metadata"] |= metadata
        found["spec"] |= {"nodeName": node} if node else {}
        return found

    return build_pod
