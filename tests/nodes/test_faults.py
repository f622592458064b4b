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

RESERVATIONS = "/api/v1/namespaces/runai-reservation/pods"
FELL_OFF_THE_BUS = 79
NODE_LOSS_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "tolerationSeconds": 0}
    | {"effect": "NoExecute"}
    for why in ("not-ready", "unreachable")
]


def containers(lab: NodesLab, *names: str) -> dict[str, Any]:
    """Return the containers' IDs: a restarted container would have another one."""
    statuses = {name: lab.namespace.pod(name)["status"] for name in names}
    return {name: of["containerStatuses"][0]["containerID"] for name, of in statuses.items()}


def test_killed_reservation_pod_is_recreated_on_the_same_device(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    here = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **here))
    shared = lab.sees("half")
    lab.namespace.create(foreign_whole_gpu_pod("whole", 1, **here))
    lab.runs("whole")
    before = containers(lab, "half", "whole")
    killed = lab.reservations()[shared]["metadata"]

    lab.plane.request("DELETE", f"{RESERVATIONS}/{killed['name']}", {"gracePeriodSeconds": 0})

    def is_back() -> bool:
        found = lab.reservations().get(shared, {}).get("metadata", killed)
        return bool(found["uid"] != killed["uid"])

    eventually(is_back, what="the device is reserved again")
    lab.namespace.create(session("other-half", part="0.5", project="vision", **here))
    assert lab.sees("other-half") == shared
    assert containers(lab, "half", "whole") == before


def test_device_lost_to_a_foreign_whole_gpu_pod_is_never_shared(lab: NodesLab, eventually):
    """Another scheduler's pod waits for any device; it gets the one of the killed reservation."""
    lab.project("vision", quota=4)
    here = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **here))
    shared = lab.sees("half")
    lab.namespace.create(foreign_whole_gpu_pod("whole", 1, **here))
    lab.namespace.create(foreign_whole_gpu_pod("greedy", 1, **here))
    lab.runs("whole")
    name = lab.reservations()[shared]["metadata"]["name"]

    lab.plane.request("DELETE", f"{RESERVATIONS}/{name}", {"gracePeriodSeconds": 0})

    def is_shared_or_whole() -> bool:
        lost = lab.kubelet_allocations(0).get(f"{lab.namespace.name}/greedy") == [shared]
        retained = list(lab.reservations()) == [shared]
        there = {pod["metadata"]["name"] for pod in lab.namespace.pods()}
        return (lost and "half" not in there) or (retained and not lost and "half" in there)

    eventually(is_shared_or_whole, what="the device is shared or somebody's, not both")


def test_kubelet_restart_preserves_containers_and_reservations(
    lab: NodesLab, cluster: RealCluster, service: Client, eventually
):
    lab.project("vision", quota=4)
    here = on_node("node-0")
    for name in ("first", "second"):
        lab.namespace.create(session(name, part="0.5", project="vision", **here))
    shared = {lab.sees(name) for name in ("first", "second")}
    lab.namespace.create(session("whole", 1, project="vision", **here))
    lab.runs("whole")
    before = containers(lab, "first", "second", "whole")

    cluster.nodes[0].restart_kubelet()
    cluster.nodes[0].until_ready()

    lab.namespace.delete("whole")
    lab.namespace.create(session("third", part="0.5", project="vision", **here))
    assert {lab.sees("third")} | shared == {"GPU-0-0", "GPU-0-1"}
    assert len(shared) == 1
    assert containers(lab, "first", "second").items() <= before.items()
    assert len(lab.kubelet_allocations(0)) == 2
    eventually(lambda: {n.name for n in service.nodes()} == {"node-0", "node-1"})


def test_broken_device_gets_no_new_pods(
    lab: NodesLab, cluster: RealCluster, service: Client, eventually
):
    lab.project("vision", quota=4)
    here = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **here))
    broken = lab.sees("half")
    (other,) = set(cluster.nodes[0].devices) - {broken}
    before = containers(lab, "half")

    cluster.nodes[0].gpus.break_down(broken, why=FELL_OFF_THE_BUS)
    try:

        def is_known() -> bool:
            nodes = {node.name: node for node in service.nodes()}
            return [d.uuid for d in nodes["node-0"].devices if d.fault] == [broken]

        eventually(is_known, what="the service knows that it broke")
        lab.namespace.create(session("joins", part="0.5", project="vision", **here))
        # One of two devices is healthy, one is held: the kubelet would not allocate the former.
        waits = eventually(lambda: lab.condition("joins", "PodScheduled").get("message"))
        assert "node node-0 offers 1 of 2 GPUs since " in waits
        assert containers(lab, "half") == before
        assert f"its GPU {broken} is broken" in lab.event_message("half", "DeviceBroken")

        lab.namespace.delete("half")
        assert lab.sees("joins") == other
    finally:
        cluster.nodes[0].gpus.mend()
        cluster.nodes[0].until_ready()
        lab.renew_agent("node-0", service)  # a new driver means a new agent


def without_image(lab: NodesLab) -> Any:
    made = session("stuck", part="0.5", project="vision", **on_node("node-0"))
    made["spec"]["containers"][0]["image"] = "localhost:1/lab/gone:1"
    return made


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
            id="image",
        ),
        pytest.param(
            without_folder_of_its_volume,
            r"its volumes \(home\) or its network are not ready since \d\d:\d\d",
            id="volume",
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

    eventually(has_reason, within=90, what="its owner reads why it does not run")


def test_lost_nodes_job_moves_only_after_the_out_of_service_taint(
    lab: NodesLab, cluster: RealCluster, eventually
):
    lab.project("vision", quota=4)
    lab.namespace.create(session("stays", part="0.5", project="vision", **on_node("node-0")))
    lab.sees("stays")
    moves = training("moves", project="vision")
    moves["spec"]["template"]["spec"]["tolerations"] = NODE_LOSS_TOLERATIONS
    with lab.cordoned("node-0"):
        lab.namespace.create(moves)
        (first,) = lab.running_of("moves")
    assert first["spec"]["nodeName"] == "node-1"
    before = containers(lab, "stays")

    cluster.nodes[1].lose()
    try:
        # Kubernetes deletes its pod; only an admin can confirm that it no longer runs there.
        name = first["metadata"]["name"]
        eventually(lambda: "deletionTimestamp" in lab.namespace.pod(name)["metadata"])
        lab.namespace.create(session("new", part="0.5", project="vision"))
        assert lab.sees("new") in cluster.nodes[0].devices
        assert [pod["metadata"]["name"] for pod in lab.namespace.pods("moves")] == [name]

        with lab.tainted("node-1", "node.kubernetes.io/out-of-service", "NoExecute"):
            (second,) = lab.running_of("moves")
        assert second["spec"]["nodeName"] == "node-0"
        assert containers(lab, "stays") == before
    finally:
        cluster.nodes[1].begin()
        cluster.nodes[1].until_ready()

    lab.namespace.create(session("there-again", 1, project="vision", **on_node("node-1")))
    assert lab.sees("there-again") in cluster.nodes[1].devices
