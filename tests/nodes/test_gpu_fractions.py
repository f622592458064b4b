"""Parts of GPUs on real nodes: the devices in containers, and in the kubelet's own records."""

from __future__ import annotations

from collections import Counter

import pytest

from nodes_lab import NodesLab, foreign_whole_gpu_pod, on_node, session, training

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]


def test_two_half_gpu_pods_see_the_same_device_and_a_third_pod_the_next(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    for name in ("first", "second", "third"):
        lab.namespace.create(session(name, part="0.5", project="vision", **on_node("node-0")))

    devices = [lab.visible_devices(name) for name in ("first", "second", "third")]

    pods_per_device = sorted(Counter(devices).values())
    assert pods_per_device == [1, 2]
    assert set(devices) == {"GPU-0-0", "GPU-0-1"} == set(lab.reservations())
    # In the kubelet's records these devices belong to the reservations, one each.
    expected_records = {
        f"runai-reservation/{pod['metadata']['name']}": [device]
        for device, pod in lab.reservations().items()
    }
    eventually(lambda: lab.kubelet_allocations(0) == expected_records, what="no other records")


def test_container_sees_only_its_own_devices(lab: NodesLab):
    lab.project("vision", quota=4)
    lab.namespace.create(session("none", project="vision"))
    lab.namespace.create(session("whole", 1, project="vision", **on_node("node-1")))
    lab.namespace.create(session("two-halves", part="0.5", project="vision", devices=2))

    assert lab.visible_devices("none") == "void"
    assert lab.visible_devices("whole") in {"GPU-1-0", "GPU-1-1"}
    assert sorted(lab.visible_devices("two-halves").split(",")) == ["GPU-0-0", "GPU-0-1"]


def test_foreign_scheduler_never_gets_a_shared_device_as_a_whole_gpu(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    node_selector = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **node_selector))
    shared = lab.visible_devices("half")

    lab.namespace.create(foreign_whole_gpu_pod("foreign", 1, **node_selector))
    lab.namespace.create(foreign_whole_gpu_pod("none-left", 1, **node_selector))

    assert {shared, lab.visible_devices("foreign")} == {"GPU-0-0", "GPU-0-1"}
    wait_message = eventually(lambda: lab.condition("none-left", "PodScheduled").get("message"))
    assert "1 Insufficient nvidia.com/gpu" in wait_message

    # A second half joins the first: the reservation keeps the device from other schedulers.
    lab.namespace.create(session("other-half", part="0.5", project="vision", **node_selector))
    assert lab.visible_devices("other-half") == shared


def test_job_pod_rejected_by_the_kubelet_is_recreated_without_a_failure(lab: NodesLab, eventually):
    """`nodeName` binds the pod without a scheduler, so the kubelet checks for free devices."""
    lab.project("vision", quota=4)
    lab.namespace.create(session("half", part="0.5", project="vision", **on_node("node-0")))
    shared = lab.visible_devices("half")
    job = training("both", 2, project="vision")  # a single failure would end it
    job["spec"]["template"]["spec"]["nodeName"] = "node-0"
    lab.namespace.create(job)

    def rejected_pod() -> str:
        found = lab.namespace.pods("both")
        return next((p["metadata"]["name"] for p in found if p["status"]["phase"] == "Failed"), "")

    name = eventually(rejected_pod, what="the kubelet rejects the pod")
    assert lab.condition(name, "DisruptionTarget").get("reason") == "TurnedAway"
    assert "would not take it" in lab.event_message(name, "TurnedAway")
    assert list(lab.reservations()) == [shared]
    lab.namespace.delete("half")

    assert lab.running_pods("both")
    assert lab.namespace.job("both")["status"].get("failed", 0) == 0


def test_shared_device_is_free_for_another_scheduler_after_its_last_pod(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    node_selector = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **node_selector))
    lab.visible_devices("half")
    lab.namespace.create(foreign_whole_gpu_pod("both", 2, **node_selector))
    eventually(lambda: lab.condition("both", "PodScheduled").get("message"))

    lab.namespace.delete("half")

    assert sorted(lab.visible_devices("both").split(",")) == ["GPU-0-0", "GPU-0-1"]
    eventually(lambda: not lab.reservations())
