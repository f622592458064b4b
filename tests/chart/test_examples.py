"""Each file of examples/kubernetes is accepted by the API server; waiting pods have a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.kubeflow import (
    kind_of_pytorch_jobs,
    training_operator,
    without_pytorch_jobs,
)
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"
# Number of pods of each file; pods with parts of GPUs start only where a device plugin runs.
WHOLE_GPU_PODS = {"job": 1, "gang": 2, "elastic": 1, "pytorchjob": 2}
GPU_FRACTION_PODS = {"session": 1, "elastic-one-pod": 1}
POD_COUNTS = {**WHOLE_GPU_PODS, **GPU_FRACTION_PODS}


def apply(lab, name: str) -> None:
    namespace_option = ("--namespace", lab.namespace.name)
    lab.plane.kubectl("apply", *namespace_option, "-f", str(EXAMPLES / f"{name}.yaml"))


def describe_pod(lab, name: str) -> str:
    return str(lab.plane.kubectl("describe", "pod", name, "--namespace", lab.namespace.name))


def example_pods(lab) -> list[str]:
    """Return the names of the example's pods."""
    names = [str(pod["metadata"]["name"]) for pod in lab.namespace.pods()]
    return sorted({*names} - {"other"})


@pytest.fixture
def kubeflow(request, lab, eventually) -> Iterator[None]:
    """Run Kubeflow's operator, for the example that needs it."""
    if request.node.get_closest_marker("kubeflow") is None:
        yield
        return
    with kind_of_pytorch_jobs(lab.plane), training_operator(lab.plane):
        # kubectl discovers the installed kinds before it applies an object.
        eventually(
            lambda: lab.plane.kubectl("get", "pytorchjobs") is not None,
            what="kubectl knows the kind",
        )
        for _namespace in without_pytorch_jobs(lab.namespace):
            yield


@pytest.fixture
def full_cluster(lab, kubeconfig, eventually):
    """A scheduler, and a cluster with a single GPU, which is in use."""
    lab.node("gpu-0", gpus=1)
    apply(lab, "project")
    with Scheduler(kubeconfig) as scheduler:
        lab.namespace.create(pod("other", project="vision"))
        eventually(lambda: lab.namespace.node_of("other"), what="the GPU is taken")
        yield scheduler


def test_every_kubernetes_example_file_is_tested():
    assert {path.stem for path in EXAMPLES.iterdir()} == {"project", *POD_COUNTS}


def test_kubectl_get_project_shows_quota_fair_share_and_allocated(full_cluster, lab, eventually):
    def columns() -> list[str]:
        header, line = lab.plane.kubectl("get", "project", "vision").splitlines()
        assert header.split()[:5] == ["NAME", "QUOTA", "FAIR", "SHARE", "ALLOCATED"]
        return [str(column) for column in line.split()]

    eventually(
        lambda: columns()[:4] == ["vision", "2", "1", "1"],
        what="quota, fair share, allocated",
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.kubeflow] if name == "pytorchjob" else [])
        for name in POD_COUNTS
    ],
)
def test_waiting_example_pod_shows_its_reason_and_binds_once_gpus_are_free(
    full_cluster, kubeflow, lab, eventually, name
):
    apply(lab, name)

    pods = eventually(
        lambda: names if len(names := example_pods(lab)) == POD_COUNTS[name] else None
    )
    for pod_name in pods:
        description = eventually(
            lambda name=pod_name: t if "Waiting" in (t := describe_pod(lab, name)) else None,
            what="the pod has a wait reason",
        )
        (line,) = {line for line in description.splitlines() if " Waiting " in line}
        assert "runai-scheduler" in line
        reason = line.split("runai-scheduler")[1]
        assert len(reason.split()) > 5  # a whole sentence
    lab.node("gpu-1", gpus=2)

    def bound() -> bool:
        nodes = [lab.namespace.node_of(pod) for pod in example_pods(lab)]
        return nodes == ["gpu-1"] * POD_COUNTS[name]

    if name in WHOLE_GPU_PODS:
        eventually(bound, what="all pods are bound")


def test_job_labelled_elastic_has_an_event_that_it_is_not_resized(full_cluster, lab, eventually):
    lab.node("gpu-1", gpus=2)

    apply(lab, "elastic")

    def has_event() -> bool:
        return any("runai submit --elastic" in describe_pod(lab, pod) for pod in example_pods(lab))

    eventually(has_event, what="a pod has the Event")
