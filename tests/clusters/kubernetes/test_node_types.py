"""Projects restricted to some node types, and jobs that request one: the nodes of their pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control_plane.lab import allow_jobs
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU

pytestmark = pytest.mark.kubernetes

SPEC = WorkloadSpec(
    "vision", "exp", "ana", "job", command=("train",), gpus=WHOLE_GPU, image="example/train"
)


@pytest.fixture
def two_types(lab):
    """Return a lab with a node of each type; the first in the alphabet is `a100`'s."""
    for name, product in (("a100", "NVIDIA-A100-SXM4-80GB"), ("t4", "Tesla-T4")):
        labels = {"runai/node-type": name, "nvidia.com/gpu.product": product}
        lab.node(f"node-{name}", gpus=2, labels=labels)
    return lab


def test_sessions_and_trainings_use_the_node_types_of_their_project(
    two_types, kubeconfig, eventually
):
    two_types.project("vision", quota=4, nodeTypes={"build": ["t4"], "train": ["a100"]})
    work = two_types.namespace
    for name in "01":
        work.create(pod(f"notebook-{name}", project="vision"))
        work.create(job(f"train-{name}", project="vision"))

    with Scheduler(kubeconfig):
        eventually(lambda: len(_nodes(work)) == 4, what="all are bound")

    for name in "01":
        assert work.node_of(f"notebook-{name}") == "node-t4"
        (job_pod,) = work.pods(f"train-{name}")
        assert job_pod["spec"]["nodeName"] == "node-a100"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"node_type": "t4"}, id="a type of node"),
        pytest.param({"gpu_types": ("Tesla-T4",)}, id="a type of GPU"),
    ],
)
def test_submitted_job_runs_on_its_requested_node_or_gpu_type(
    two_types, kubeconfig, eventually, fields
):
    two_types.project("vision", quota=4)
    work = two_types.namespace
    allow_jobs(two_types.plane, work.name)
    submitted = [replace(SPEC, name=name, **fields) for name in ("exp", "again")]

    with Scheduler(kubeconfig, namespace=work.name) as scheduler:
        scheduler.call(scheduler.cluster.submit(submitted))
        eventually(lambda: len(_nodes(work)) == 2, what="both are bound")

    assert _nodes(work) == ["node-t4", "node-t4"]


def _nodes(namespace: Any) -> list[str]:
    return sorted(p["spec"]["nodeName"] for p in namespace.pods() if "nodeName" in p["spec"])
