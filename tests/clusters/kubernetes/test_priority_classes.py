"""The effect of the chart's PriorityClasses: which pods an owner may reclaim GPUs from."""

from __future__ import annotations

from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from control_plane.objects import job, pod
from control_plane.plane import ControlPlane
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

MERGE = "application/merge-patch+json"


def with_priority_class(name: str, made: dict[str, Any]) -> dict[str, Any]:
    """Set a PriorityClass of the chart in a Job's pod template; no label gives its kind."""
    made["spec"]["template"]["spec"]["priorityClassName"] = name
    return made


def set_quota(plane: ControlPlane, project: str, quota: int) -> None:
    path = f"/apis/jupyter-runai.dev/v1alpha1/projects/{project}"
    plane.request("PATCH", path, {"spec": {"quota": quota}}, content_type=MERGE)


def test_chart_installs_a_non_preempting_class_of_each_kind(lab):
    specs = [
        lab.namespace.create(pod(name, priorityClassName=name))["spec"]
        for name in ("train", "build", "inference")
    ]

    # Set by the API server's admission; with "Never", kube-scheduler evicts no pod for it.
    assert [(spec["priority"], spec["preemptionPolicy"]) for spec in specs] == [
        (50, "Never"),
        (100, "Never"),
        (125, "Never"),
    ]


def test_project_owner_reclaims_the_gpu_of_the_training_priority_class_only(
    lab, kubeconfig, eventually
):
    protected_class = "inference"
    lab.node("gpu-0", gpus=2)
    lab.project("bob", quota=0)
    lab.project("patty", quota=2)
    work = lab.namespace
    for name in (protected_class, "train"):
        work.create(with_priority_class(name, job(name, project="patty")))

    with Scheduler(kubeconfig):
        eventually(lambda: len(_bound(work)) == 2, what="both run")
        (protected_pod,) = _bound(work, protected_class)
        # Now both exceed patty's quota of 0, and bob is entitled to both GPUs.
        set_quota(lab.plane, "patty", 0)
        set_quota(lab.plane, "bob", 2)
        for name in ("bob-0", "bob-1"):
            work.create(pod(name, project="bob"))
        eventually(lambda: work.job("train")["spec"].get("suspend"), what="the training is paused")
        running = eventually(lambda: _bound(work) & {"bob-0", "bob-1"}, what="bob has a GPU")
        (waiting_pod,) = {"bob-0", "bob-1"} - running
        eventually(
            lambda: wait_message(work.pod(waiting_pod)), what="the other pod says why it waits"
        )

    assert _bound(work) == {protected_pod} | running
    assert not work.job(protected_class)["spec"].get("suspend")


def _bound(namespace: Any, job: str = "") -> set[str]:
    """Return names of bound pods that are not terminating.

    A Job's pod stays until its controller has counted it.
    """
    return {
        p["metadata"]["name"]
        for p in namespace.pods(job)
        if "nodeName" in p["spec"] and "deletionTimestamp" not in p["metadata"]
    }
