"""Faults of real nodes: reservation pods, kubelets, devices, whole nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from nodes_lab import NodesLab, foreign_whole_gpu_pod, mounting, on_node, session, training
from real_nodes.cluster import RealCluster
from runai.hub_service.client import Client

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]

RESERVATION_PODS = "/api/v1/namespaces/runai-reservation/pods"
XID_FELL_OFF_THE_BUS = 79
NODE_LOSS_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "tolerationSeconds": 0}
    | {"effect": "NoExecute"}
    for taint in ("not-ready", "unreachable")
]


def container_ids(lab: NodesLab, *names: str) -> dict[str, Any]:
    """Return the containers' IDs: a restarted container would have another one."""
    statuses = {name: lab.namespace.pod(name)["status"] for name in names}
    return {name: of["containerStatuses"][0]["containerID"] for name, of in statuses.items()}


def test_killed_reservation_pod_is_recreated_on_the_same_device(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    node_selector = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **node_selector))
    shared = lab.visible_devices("half")
    lab.namespace.create(foreign_whole_gpu_pod("whole", 1, **node_selector))
    lab.wait_until_ready("whole")
    ids_before = container_ids(lab, "half", "whole")
    killed_pod = lab.reservations()[shared]["metadata"]

    path = f"{RESERVATION_PODS}/{killed_pod['name']}"
    lab.plane.request("DELETE", path, {"gracePeriodSeconds": 0})

    def is_back() -> bool:
        current_pod = lab.reservations().get(shared, {}).get("metadata", killed_pod)
        return bool(current_pod["uid"] != killed_pod["uid"])

    eventually(is_back, what="the device is reserved again")
    lab.namespace.create(session("other-half", part="0.5", project="vision", **node_selector))
    assert lab.visible_devices("other-half") == shared
    assert container_ids(lab, "half", "whole") == ids_before


def test_device_lost_to_a_foreign_whole_gpu_pod_is_never_shared(lab: NodesLab, eventually):
    """A pod of kube-scheduler waits for any device; it may get the killed reservation's."""
    lab.project("vision", quota=4)
    node_selector = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **node_selector))
    shared = lab.visible_devices("half")
    lab.namespace.create(foreign_whole_gpu_pod("whole", 1, **node_selector))
    lab.namespace.create(foreign_whole_gpu_pod("greedy", 1, **node_selector))
    lab.wait_until_ready("whole")
    name = lab.reservations()[shared]["metadata"]["name"]

    lab.plane.request("DELETE", f"{RESERVATION_PODS}/{name}", {"gracePeriodSeconds": 0})

    def is_shared_or_whole() -> bool:
        is_lost = lab.kubelet_allocations(0).get(f"{lab.namespace.name}/greedy") == [shared]
        is_reserved = list(lab.reservations()) == [shared]
        pod_names = {pod["metadata"]["name"] for pod in lab.namespace.pods()}
        is_shared = is_reserved and not is_lost and "half" in pod_names
        return is_shared or (is_lost and "half" not in pod_names)

    eventually(is_shared_or_whole, what="the device is shared, or the foreign pod's, not both")


def test_kubelet_restart_preserves_containers_and_reservations(
    lab: NodesLab, cluster: RealCluster, service: Client, eventually
):
    lab.project("vision", quota=4)
    node_selector = on_node("node-0")
    for name in ("first", "second"):
        lab.namespace.create(session(name, part="0.5", project="vision", **node_selector))
    shared = {lab.visible_devices(name) for name in ("first", "second")}
    lab.namespace.create(session("whole", 1, project="vision", **node_selector))
    lab.wait_until_ready("whole")
    ids_before = container_ids(lab, "first", "second", "whole")

    cluster.nodes[0].restart_kubelet()
    cluster.nodes[0].until_ready()

    lab.namespace.delete("whole")
    lab.namespace.create(session("third", part="0.5", project="vision", **node_selector))
    assert {lab.visible_devices("third")} | shared == {"GPU-0-0", "GPU-0-1"}
    assert len(shared) == 1
    assert container_ids(lab, "first", "second").items() <= ids_before.items()
    assert len(lab.kubelet_allocations(0)) == 2
    eventually(lambda: {n.name for n in service.nodes()} == {"node-0", "node-1"})


def test_broken_device_gets_no_new_pods(
    lab: NodesLab, cluster: RealCluster, service: Client, eventually
):
    lab.project("vision", quota=4)
    node_selector = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **node_selector))
    broken = lab.visible_devices("half")
    (healthy,) = set(cluster.nodes[0].devices) - {broken}
    ids_before = container_ids(lab, "half")

    cluster.nodes[0].gpus.break_down(broken, xid=XID_FELL_OFF_THE_BUS)
    try:

        def is_known() -> bool:
            nodes = {node.name: node for node in service.nodes()}
            return [d.uuid for d in nodes["node-0"].devices if d.fault] == [broken]

        eventually(is_known, what="the service knows the broken device")
        lab.namespace.create(session("joins", part="0.5", project="vision", **node_selector))
        # The reservation has the broken device: the kubelet would not allocate the healthy one.
        wait_message = eventually(lambda: lab.condition("joins", "PodScheduled").get("message"))
        assert "node node-0 offers 1 of 2 GPUs since " in wait_message
        assert container_ids(lab, "half") == ids_before
        assert f"its GPU {broken} is broken" in lab.event_message("half", "DeviceBroken")

        lab.namespace.delete("half")
        assert lab.visible_devices("joins") == healthy
    finally:
        cluster.nodes[0].gpus.mend()
        cluster.nodes[0].until_ready()
        lab.renew_agent("node-0", service)  # a restarted driver needs a new agent


def without_image(lab: NodesLab) -> Any:
    pod = session("stuck", part="0.5", project="vision", **on_node("node-0"))
    pod["spec"]["containers"][0]["image"] = "localhost:1/lab/gone:1"
    return pod


def without_folder_of_its_volume(lab: NodesLab) -> Any:
    name = f"no-disk-{lab.number}"
    lab.storage_class(name)
    lab.volume(name, "node-0", of_class=name, local={"path": f"/no/{name}"})
    lab.namespace.claim("home", of_class=name)
    return mounting(session("stuck", part="0.5", project="vision"), "home")


@pytest.mark.parametrize(
    ("pod_factory", "reason"),
    [
        pytest.param(
            without_image,
            r"it does not run yet: (ErrImagePull|ImagePullBackOff): .*gone",
            id="image does not exist",
        ),
        pytest.param(
            without_folder_of_its_volume,
            r"its volumes \(home\) or its network are not ready since \d\d:\d\d",
            id="folder of the volume does not exist",
        ),
    ],
)
def test_bound_pod_that_does_not_run_has_the_cause_as_its_reason(
    pod_factory: Callable[[NodesLab], Any], reason: str, lab: NodesLab, service: Client, eventually
):
    lab.seen_project(service, "vision", quota=4)
    lab.namespace.create(pod_factory(lab))

    def has_reason() -> bool:
        [found] = [w for w in service.workloads() if w.project == "vision"]
        assert found.reason is not None
        return re.match(reason, found.reason.text) is not None

    eventually(has_reason, within=90, what="the workload has the reason")


def test_lost_nodes_job_moves_only_after_the_out_of_service_taint(
    lab: NodesLab, cluster: RealCluster, eventually
):
    lab.project("vision", quota=4)
    lab.namespace.create(session("stays", part="0.5", project="vision", **on_node("node-0")))
    lab.visible_devices("stays")
    job = training("moves", project="vision")
    job["spec"]["template"]["spec"]["tolerations"] = NODE_LOSS_TOLERATIONS
    with lab.cordoned("node-0"):
        lab.namespace.create(job)
        (first_pod,) = lab.running_pods("moves")
    assert first_pod["spec"]["nodeName"] == "node-1"
    ids_before = container_ids(lab, "stays")

    cluster.nodes[1].lose()
    try:
        # Kubernetes deletes the pod; only an admin can confirm that it no longer runs on the node.
        name = first_pod["metadata"]["name"]
        eventually(lambda: "deletionTimestamp" in lab.namespace.pod(name)["metadata"])
        lab.namespace.create(session("new", part="0.5", project="vision"))
        assert lab.visible_devices("new") in cluster.nodes[0].devices
        assert [pod["metadata"]["name"] for pod in lab.namespace.pods("moves")] == [name]

        with lab.tainted("node-1", "node.kubernetes.io/out-of-service", "NoExecute"):
            (second_pod,) = lab.running_pods("moves")
        assert second_pod["spec"]["nodeName"] == "node-0"
        assert container_ids(lab, "stays") == ids_before
    finally:
        cluster.nodes[1].begin()
        cluster.nodes[1].until_ready()

    lab.namespace.create(session("there-again", 1, project="vision", **on_node("node-1")))
    assert lab.visible_devices("there-again") in cluster.nodes[1].devices
