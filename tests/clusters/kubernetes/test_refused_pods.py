"""Pods with requests that no node or this scheduler can satisfy: each gets the reason.

All wait side by side in one cluster, beside a pod that runs; `kubectl describe` shows the reasons.
A pod with a reserved place names the node.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

HOST_LABEL = "kubernetes.io/hostname"
SPREAD_RULES = {"topologyKey": HOST_LABEL, "labelSelector": {"matchLabels": {"app": "train"}}}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [SPREAD_RULES]}
ELSEWHERE = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": HOST_LABEL, "operator": "In", "values": ["gpu-9"]}]}
    ]
}
HOST_PORT = {
    "name": "main",
    "image": "example/train",
    "ports": [{"containerPort": 80, "hostPort": 80}],
}
POD_AFFINITY_MESSAGE = "affinity between pods cannot be kept by this scheduler: remove it"
PORT_MESSAGE = "ports of the node (hostPort) cannot be kept apart by this scheduler: remove them"

NOWHERE = "no node that it may use has what it asks for (P5)"
TAINTED = "1 node has a taint that it does not tolerate (dedicated)"
OTHER_LABELS = "other labels than its nodeSelector names"
CARD, CARDS = "example.com/card", {"example.com/card": "2"}
SETS_VISIBLE_DEVICES = {
    "name": "main",
    "image": "example/train",
    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
}
WITH_CARDS = {"name": "main", "image": "example/train", "resources": {"limits": CARDS}}
TAINT = {"key": "dedicated", "value": "yes", "effect": "NoSchedule"}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "host-port": ({"containers": [HOST_PORT]}, PORT_MESSAGE),
    "host-port-of-an-init-container": (
        {"initContainers": [HOST_PORT | {"name": "init"}]},
        PORT_MESSAGE,
    ),
    "affinity": ({"affinity": {"podAffinity": REQUIRED}}, POD_AFFINITY_MESSAGE),
    "anti-affinity": ({"affinity": {"podAntiAffinity": REQUIRED}}, POD_AFFINITY_MESSAGE),
    "spread": (
        {
            "topologySpreadConstraints": [
                SPREAD_RULES | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            ]
        },
        "a topology spread cannot be kept by this scheduler: use ScheduleAnyway or remove it",
    ),
    "node-affinity": (
        {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ELSEWHERE}
            }
        },
        f"{NOWHERE}: 2 nodes have other labels than its node affinity requires",
    ),
    "node-selector": (
        {"nodeSelector": {HOST_LABEL: "gpu-9"}},
        f"{NOWHERE}: 2 nodes have {OTHER_LABELS}",
    ),
    "tainted-node": (
        {"nodeSelector": {HOST_LABEL: "tainted"}},
        f"{NOWHERE}: {TAINTED}, 1 node has {OTHER_LABELS}",
    ),
    "device-claims": (
        {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]},
        "resourceClaims cannot be kept by this scheduler: request nvidia.com/gpu instead",
    ),
    "training-in-a-bare-pod": (
        {"labels": {"runai/kind": "train"}},
        "training pods must belong to a Job, which makes them again after a pause",
    ),
    "gang-label-on-a-bare-pod": (
        {"labels": {"runai/gang": "true"}},
        ("runai/gang is for the pods of a Job, which says how many start together: use a Job"),
    ),
    "sets-visible-devices": (
        {"annotations": {"gpu-fraction": "0.5"}, "containers": [SETS_VISIBLE_DEVICES]},
        (
            "container main would not see its share: set its variable NVIDIA_VISIBLE_DEVICES"
            " from the field metadata.annotations['runai/visible-devices'] (fieldRef)"
        ),
    ),
    "more-cards-than-nodes-have": (
        {"containers": [WITH_CARDS], "initContainers": [WITH_CARDS | {"name": "init"}]},
        f"{NOWHERE}: {TAINTED}, 1 node has too little {CARD}",
    ),
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "tolerating": {
        "nodeSelector": {HOST_LABEL: "tainted"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    },
    "preferring": {
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": SPREAD_RULES}
                ]
            }
        },
    },
}


def test_refused_pods_have_a_condition_with_the_reason_and_accepted_pods_run(
    lab, kubeconfig, eventually
):
    lab.node("gpu-0", gpus=1)
    lab.node("tainted", gpus=1, taints=[TAINT])
    lab.project("vision", quota=16)
    work = lab.namespace
    for name, (spec, _) in REFUSED.items():
        work.create(pod(name, project="vision", **spec))

    with Scheduler(kubeconfig):
        messages = {
            name: eventually(lambda name=name: wait_message(work.pod(name)), what=name)
            for name in REFUSED
        }
        for name, spec in ACCEPTED.items():
            work.create(pod(name, project="vision", **spec))
            eventually(lambda name=name: work.node_of(name), what=f"{name} runs")

    assert messages == {name: text for name, (_, text) in REFUSED.items()}
    assert {work.node_of(name) for name in REFUSED} == {""}
    assert {name: work.node_of(name) for name in ACCEPTED} == {
        "tolerating": "tainted",
        "preferring": "gpu-0",
    }


def test_pod_with_a_nominated_placement_names_its_node(lab, kubeconfig, eventually):
    """As kube-scheduler does (`nominatedNodeName`): autoscalers add no node for the pod."""
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty")
    work = lab.namespace
    slow = job("slow", project="patty", annotations={"test/stops-in": "10m"})
    slow["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 600
    work.create(slow)

    def nominated() -> str:
        return str(work.pod("owner")["status"].get("nominatedNodeName", ""))

    with Scheduler(kubeconfig):
        (slow_pod,) = eventually(lambda: work.pods("slow"), what="the job has its pod")
        name = slow_pod["metadata"]["name"]
        eventually(lambda: work.node_of(name), what="the job runs")
        work.create(pod("owner", project="bob"))
        eventually(lambda: nominated() == "gpu-0", what="its place is reserved")
        lab.plane.kubectl("cordon", "gpu-0")
        eventually(lambda: not nominated(), what="the cordoned place is given up")
        lab.plane.kubectl("uncordon", "gpu-0")
        eventually(lambda: nominated() == "gpu-0", what="its place is reserved again")
        path = f"/api/v1/namespaces/{work.name}/pods/{name}"
        lab.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        eventually(lambda: work.node_of("owner"), what="the owner runs")
