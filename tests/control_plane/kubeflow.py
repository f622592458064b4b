"""Kubeflow's PyTorchJobs on a control plane: the kind, and the operator that makes their pods.

    with kind_of_pytorch_jobs(plane):      # as its CustomResourceDefinition is installed, and gone
        with training_operator(plane):     # the training-operator's own controller
            namespace.plane.request("POST", pytorch_jobs("lab-1"), pytorch_job("train", workers=2))

For tests with the marker `kubeflow`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from control_plane.objects import Namespace, pod
from control_plane.plane import ControlPlane
from control_plane.programs import find_resource
from waiting import eventually

SERVED = "/apis/kubeflow.org/v1/pytorchjobs"
WITHIN_S = 120
"""A CustomResourceDefinition of half a megabyte takes a busy API server a while."""
KINDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def pytorch_jobs(namespace: str, name: str = "") -> str:
    """Return the API path of a namespace's PyTorchJobs, or of one of them."""
    path = f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"
    return f"{path}/{name}" if name else path


def pytorch_job(
    name: str,
    *,
    workers: int,
    labels: Mapping[str, str] | None = None,
    master_gpus: int | None = 1,
    restarts: str = "OnFailure",
    **policy: Any,
) -> dict[str, Any]:
    """Return a PyTorchJob with pods of one GPU each; `labels` are its templates'."""
    roles = {"Worker": (workers, 1)}
    if master_gpus is not None:
        roles = {"Master": (1, master_gpus), **roles}
    job: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {}},
    }
    for role, (replicas, gpus) in roles.items():
        template = pod("", gpus, labels=labels)
        template["metadata"] = {"labels": template["metadata"]["labels"]}
        template["spec"]["containers"][0]["name"] = "pytorch"
        job["spec"]["pytorchReplicaSpecs"][role] = {
            "replicas": replicas,
            "restartPolicy": restarts,
            "template": template,
        }
    if policy:
        job["spec"]["runPolicy"] = policy
    return job


@contextlib.contextmanager
def kind_of_pytorch_jobs(plane: ControlPlane) -> Iterator[None]:
    """Install the kind; remove it afterwards, with all its objects."""
    crd_file = find_resource("pytorchjobs.yaml")
    assert crd_file is not None
    kind = yaml.safe_load(crd_file.read_text())
    plane.request("POST", KINDS, kind)
    try:
        eventually(lambda: _is_there(plane, SERVED), within=WITHIN_S, what="it is served")
        yield
    finally:
        name = kind["metadata"]["name"]
        plane.request("DELETE", f"{KINDS}/{name}")
        path = f"{KINDS}/{name}"
        eventually(lambda: not _is_there(plane, path), within=WITHIN_S, what="the kind is gone")


@contextlib.contextmanager
def training_operator(plane: ControlPlane) -> Iterator[None]:
    """Run the training-operator."""
    plane.start("training-operator", {"kubeconfig": str(plane.kubeconfig)})
    try:
        yield
    finally:
        plane.stop("training-operator")


def without_pytorch_jobs(namespace: Namespace) -> Iterator[Namespace]:
    """Yield a namespace, and delete its PyTorchJobs: the operator would go on making their pods."""
    yield namespace
    path = pytorch_jobs(namespace.name)
    namespace.plane.request("DELETE", path)

    def all_deleted() -> bool:
        return not namespace.plane.request("GET", path)["items"]

    eventually(all_deleted, within=WITHIN_S, what="they are gone")


def _is_there(plane: ControlPlane, path: str) -> bool:
    # 429: for a moment, while the API server sets the kind up.
    return plane.request_existing("GET", path, absent=(404, 429)) is not None
