"""Parts of GPUs on real nodes: the devices in containers, and in the kubelet's own books."""

from __future__ import annotations

import pytest

from nodes_lab import NodesLab, foreign_whole_gpu_pod, on_node, session, training

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]


def test_two_half_gpu_pods_see_the_same_device_and_a_third_pod_the_next(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    for name in ("first", "second", "third"):
        lab.namespace.create(session(name, part="0.5", project="vision", **on_node("node-0")))

    seen = [lab.sees(name) for name in ("first", "second", "third")]

    assert sorted(map(seen.count, seen)) == [1, 2, 2]
    assert set(seen) == {"GPU-0-0", "GPU-0-1"} == set(lab.reservations())
    # In the kubelet's books these devices belong to the reservations, one each.
    books = {
        f"runai-reservation/{pod['metadata']['name']}": [device]
        for device, pod in lab.reservations().items()
    }
    eventually(
        lambda: lab.kubelet_allocations(0) == books, what="nobody else is in the kubelet's books"
    )


def test_container_sees_only_its_own_devices(lab: NodesLab):
    lab.project("vision", quota=4)
    lab.namespace.create(session("none", project="vision"))
    lab.namespace.create(session("whole", 1, project="vision", **on_node("node-1")))
    lab.namespace.create(session("two-halves", part="0.5", project="vision", devices=2))

    assert lab.sees("none") == "void"
    assert lab.sees("whole") in {"GPU-1-0", "GPU-1-1"}
    assert sorted(lab.sees("two-halves").split(",")) == ["GPU-0-0", "GPU-0-1"]


def test_foreign_scheduler_never_gets_a_shared_device_as_a_whole_gpu(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    here = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **here))
    shared = lab.sees("half")

    lab.namespace.create(foreign_whole_gpu_pod("one", 1, **here))
    lab.namespace.create(foreign_whole_gpu_pod("none-left", 1, **here))

    assert {shared, lab.sees("one")} == {"GPU-0-0", "GPU-0-1"}
    waits = eventually(lambda: lab.condition("none-left", "PodScheduled").get("message"))
    assert "1 Insufficient nvidia.com/gpu" in waits

    # Another half joins the first: the device is not whole any more, but it is reserved for us.
    lab.namespace.create(session("other-half", part="0.5", project="vision", **here))
    assert lab.sees("other-half") == shared


def test_job_pod_rejected_by_the_kubelet_is_recreated_without_a_failure(lab: NodesLab, eventually):
    """It is bound to the node past all schedulers; its kubelet has the last word."""
    lab.project("vision", quota=4)
    lab.namespace.create(session("half", part="0.5", project="vision", **on_node("node-0")))
    shared = lab.sees("half")
    both = training("both", 2, project="vision")  # a single failure would end it
    both["spec"]["template"]["spec"]["nodeName"] = "node-0"
    lab.namespace.create(both)

    def rejected_pod() -> str:
        found = lab.namespace.pods("both")
        return next((p["metadata"]["name"] for p in found if p["status"]["phase"] == "Failed"), "")

    name = eventually(rejected_pod, what="it is turned away")
    assert lab.condition(name, "DisruptionTarget").get("reason") == "TurnedAway"
    assert "would not take it" in lab.event_message(name, "TurnedAway")
    assert list(lab.reservations()) == [shared]
    lab.namespace.delete("half")

    assert lab.running_of("both")
    assert lab.namespace.job("both")["status"].get("failed", 0) == 0


def test_shared_device_is_free_for_another_scheduler_after_its_last_pod(lab: NodesLab, eventually):
    lab.project("vision", quota=4)
    here = on_node("node-0")
    lab.namespace.create(session("half", part="0.5", project="vision", **here))
    lab.sees("half")
    lab.namespace.create(foreign_whole_gpu_pod("both", 2, **here))
    eventually(lambda: lab.condition("both", "PodScheduled").get("message"))

    lab.namespace.delete("half")

    assert sorted(lab.sees("both").split(",")) == ["GPU-0-0", "GPU-0-1"]
    eventually(lambda: not lab.reservations())
