"""Nodes come, go and are cordoned while people work."""

from __future__ import annotations

import pytest

from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def test_a_cordoned_node_gets_nobody_new(lab, rights, eventually):
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota=2)
    work = lab.namespace

    with Scheduler(rights):
        work.create(pod("before", project="vision"))
        eventually(lambda: work.node_of("before"), what="the first is bound")
        lab.plane.kubectl("cordon", "gpu-0")
        work.create(pod("after", project="vision"))
        eventually(lambda: _sentence(work.pod("after")), what="the second waits")
        assert work.node_of("after") == ""
        lab.plane.kubectl("uncordon", "gpu-0")
        eventually(lambda: work.node_of("after"), what="the second is bound")

    assert work.node_of("before") == "gpu-0"


def test_a_job_goes_on_elsewhere_when_its_node_is_lost(lab, rights, eventually):
    lab.node("gpu-0", gpus=1)
    lab.project("vision", quota=1)
    work = lab.namespace
    leaves_at_once = {
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 0,
    }
    train = job("train", project="vision")
    train["spec"]["template"]["spec"]["tolerations"] = [leaves_at_once]
    work.create(train)

    with Scheduler(rights):
        eventually(lambda: [p for p in work.pods() if "nodeName" in p["spec"]], what="it runs")
        lab.node("gpu-1", gpus=1)
        down = {"metadata": {"annotations": {"test/down": "true"}}}
        lab.plane.request("PATCH", "/api/v1/nodes/gpu-0", down, content_type=MERGE)
        lost = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
        lab.plane.request(
            "PATCH",
            "/api/v1/nodes/gpu-0/status",
            {"status": {"conditions": [lost]}},
            content_type=STRATEGIC,
        )
        eventually(
            lambda: [p["spec"].get("nodeName") for p in work.pods("train")] == ["gpu-1"],
            what="it runs elsewhere",
        )


def test_a_pod_of_another_scheduler_keeps_its_gpu(lab, rights, eventually):
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota=2)
    work = lab.namespace
    work.create(pod("theirs", nodeName="gpu-0", schedulerName="theirs"))

    with Scheduler(rights):
        for name in ("one", "two"):
            work.create(pod(name, project="vision"))
        eventually(lambda: _bound(work) & {"one", "two"}, what="one is bound")
        eventually(
            lambda: any(_sentence(p) for p in work.pods()), what="the other one says why it waits"
        )

    assert len(_bound(work)) == 2


def _bound(namespace) -> set[str]:
    return {p["metadata"]["name"] for p in namespace.pods() if "nodeName" in p["spec"]}


def _sentence(found) -> str:
    conditions = found["status"].get("conditions", [])
    return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")
