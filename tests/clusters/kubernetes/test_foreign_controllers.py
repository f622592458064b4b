"""Pods of foreign controllers on our scheduler: each is a workload of its own.

It is bound, evicted for an owner, and created again.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

KINDS = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
}


def foreign_controller(kind: str, replicas: int) -> dict[str, Any]:
    """Return a controller of `replicas` pods of one GPU each, which an owner may reclaim."""
    labels = {"app": "served", "runai/kind": "train"}
    template = pod("served", project="patty", labels=labels)
    del template["metadata"]["name"]
    named = {"serviceName": "served"} if kind == "StatefulSet" else {}
    return {
        "metadata": {"name": "served"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "served"}},
            "template": template,
            **named,
        },
    }


@pytest.fixture
def create_controller(lab, eventually):
    """Return a function that creates one; it is deleted with its pods before the lab is emptied."""
    paths: list[str] = []

    def create(kind: str, controller: dict[str, Any]) -> None:
        path = f"/apis/apps/v1/namespaces/{lab.namespace.name}/{KINDS[kind]}"
        lab.plane.request("POST", path, controller)
        paths.append(f"{path}/{controller['metadata']['name']}")

    yield create
    for path in paths:
        lab.plane.request("DELETE", path, {"propagationPolicy": "Foreground"})
    for path in paths:
        eventually(
            lambda path=path: lab.plane.request_existing("GET", path) is None,
            what=f"{path} is gone",
        )


@pytest.mark.parametrize("kind", KINDS)
def test_pod_of_a_foreign_controller_is_evicted_recreated_and_bound_again(
    lab, kubeconfig, eventually, create_controller, kind
):
    lab.node("gpu-0", gpus=1)
    lab.node("gpu-1", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty", quota=1)
    work = lab.namespace
    create_controller(kind, foreign_controller(kind, replicas=2))

    with Scheduler(kubeconfig):
        before = eventually(lambda: _if_two(_bound_pods(work)), what="both pods run")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: work.node_of("bobs-notebook"), what="bob has his GPU")
        recreated = eventually(
            lambda: _waiting_pods(work), what="the recreated pod says why it waits"
        )
        assert recreated.isdisjoint(before)
        assert len(_bound_pods(work) & before) == 1
        work.delete("bobs-notebook")
        after = eventually(lambda: _if_two(_bound_pods(work)), what="both pods run again")

    assert len(after & before) == 1
    assert recreated <= after


def test_deployment_pod_without_a_kind_label_is_not_evicted_for_a_project_owner(
    lab, kubeconfig, eventually, create_controller
):
    lab.node("gpu-0", gpus=1)
    lab.project("bob", quota=1)
    lab.project("patty", quota=1)
    work = lab.namespace
    session = foreign_controller("Deployment", replicas=1)
    del session["spec"]["template"]["metadata"]["labels"]["runai/kind"]
    create_controller("Deployment", session)

    with Scheduler(kubeconfig):
        before = eventually(lambda: _bound_pods(work), what="patty's pod runs")
        work.create(pod("bobs-notebook", project="bob"))
        eventually(lambda: _waiting_pods(work), what="bob's pod says why it waits")

    assert _bound_pods(work) == before


def _if_two(uids: set[str]) -> set[str]:
    return uids if len(uids) == 2 else set()


def _bound_pods(namespace: Any) -> set[str]:
    """Return the UIDs of bound pods that are neither terminating nor bob's."""
    return {
        p["metadata"]["uid"]
        for p in namespace.pods()
        if "nodeName" in p["spec"]
        and "deletionTimestamp" not in p["metadata"]
        and p["metadata"]["name"] != "bobs-notebook"
    }


def _waiting_pods(namespace: Any) -> set[str]:
    """Return the UIDs of pods with a message why they wait."""
    waits = (p for p in namespace.pods() if "nodeName" not in p["spec"])
    return {p["metadata"]["uid"] for p in waits if wait_message(p)}
