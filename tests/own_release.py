"""The chart on a cluster of one's own, and the objects that it adds there.

The chart gets one node, by a label that only tests use: it ignores pods, nodes and projects without
the label (docs/bigger_clusters.md). Tests remove every object they make; an object left over is an
error. Called by tests/own_cluster.
"""

from __future__ import annotations

import os
import secrets
from base64 import b64encode
from collections import Counter
from typing import Any, Self

from control_plane.calls import Calls
from control_plane.chart import CHART, helm
from control_plane.objects import Namespace, add_project
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    RESERVATIONS,
    read_node,
    read_pod,
)
from waiting import eventually

RELEASE, WORK = "runai-test", "runai-test-work"
POOL = {"jupyter-runai.dev/test": "here"}
"""The label of the objects that tests may use."""
VALUES = "RUNAI_CLUSTER_VALUES"
"""The variable that names a file with chart values, most importantly the image."""
MIN_GPUS = 2
WITHIN_S = 300
PROJECTS = "/apis/jupyter-runai.dev/v1alpha1/projects"
KIND = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/projects.jupyter-runai.dev"
NAMESPACES = "/api/v1/namespaces"
CLUSTER_SCOPED_PATHS = (
    NAMESPACES,
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
)


class OwnRelease:
    """The installed chart as a context manager: installed on entry, removed on exit."""

    work: Namespace
    node: str
    gpus: int
    """The number of the node's free GPUs."""

    def __init__(self, cluster: Calls) -> None:
        """Store the cluster; `with` makes the first change."""
        self.cluster = cluster

    def __enter__(self) -> Self:
        """Install the chart; its service leads when this returns.

        Raises:
            RuntimeError: the chart is there already, or no node has two GPUs to spare.
        """
        if found := [name for name in self._names() if "runai" in name]:
            raise RuntimeError(f"the chart is, or was, installed there: {', '.join(sorted(found))}")
        self.gpus, self.node = self._node()
        self._before = self._names()
        try:
            self._install()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the chart, and check that no object is left."""
        self._remove()

        def is_as_before() -> bool:
            assert not (left := self._names() - self._before), left
            return True

        eventually(is_as_before, within=WITHIN_S, what="nothing of it is left")

    def project(self, name: str, **spec: Any) -> None:
        """Add a project."""
        add_project(self.cluster, name, labels=POOL, **spec)

    def empty(self) -> None:
        """Delete all pods, Jobs and projects of a test; wait until they are gone."""
        for path in (f"/apis/batch/v1/namespaces/{WORK}/jobs", f"{NAMESPACES}/{WORK}/pods"):
            self.cluster.request("DELETE", path, {"propagationPolicy": "Background"})
        self._forget(PROJECTS)

        def is_empty() -> bool:
            reserved = self.cluster.request("GET", f"{NAMESPACES}/{RESERVATIONS}/pods")
            return not self.work.pods() and not reserved["items"]

        eventually(is_empty, within=WITHIN_S, what="the pods of the test are gone")

    # -- inside ------------------------------------------------------------------------------------

    def _install(self) -> None:
        self._label("here")
        self.cluster.request("POST", NAMESPACES, {"metadata": {"name": RELEASE}})
        token = b64encode(secrets.token_hex(16).encode()).decode()
        secret = {"metadata": {"name": "hub"}, "data": {"hub.services.runai.apiToken": token}}
        self.cluster.request("POST", f"{NAMESPACES}/{RELEASE}/secrets", secret)
        values = os.environ.get(VALUES, "")
        ((key, value),) = POOL.items()
        self._helm(
            *("install", "runai", str(CHART), *(["--values", values] if values else [])),
            *("--set", f"nodePool={key}={value}"),
        )
        self.work = Namespace(self.cluster, WORK)
        leads = f"{NAMESPACES}/{RELEASE}/pods?labelSelector=runai/leads=true"
        try:
            eventually(
                lambda: self.cluster.request("GET", leads)["items"],
                within=WITHIN_S,
                what="its service leads",
            )
        except AssertionError as late:
            described = self.cluster.kubectl("describe", "pods", "-n", RELEASE)
            raise RuntimeError(f"{late}\n{described}") from late

    def _remove(self) -> None:
        if hasattr(self, "work"):
            self.empty()
        self._helm("uninstall", "runai", "--ignore-not-found")
        # `helm uninstall` keeps the definition of projects, and the objects that share devices.
        for path in (KIND, *(f"{NAMESPACES}/{name}" for name in (WORK, RELEASE, RESERVATIONS))):
            self._forget(path)
        self._label(None)

    def _node(self) -> tuple[int, str]:
        """Return the node with the fewest sufficient free GPUs, as (free GPUs, name)."""
        allocated: Counter[str] = Counter()
        for found in self.cluster.request("GET", "/api/v1/pods")["items"]:
            pod = read_pod(found)
            allocated[pod.node] += 0 if pod.is_finished else pod.gpus
        nodes = map(read_node, self.cluster.request("GET", "/api/v1/nodes")["items"])
        free = [(n.gpus - allocated[n.name], n.name) for n in nodes if n.is_open and not n.taints]
        enough = [each for each in free if each[0] >= MIN_GPUS]
        if not enough:
            raise RuntimeError(f"no node has {MIN_GPUS} free GPUs and no taint")
        return min(enough)

    def _label(self, value: str | None) -> None:
        body = {"metadata": {"labels": dict.fromkeys(POOL, value)}}
        self.cluster.request(
            "PATCH", f"/api/v1/nodes/{self.node}", body, content_type="application/merge-patch+json"
        )

    def _helm(self, *arguments: str) -> None:
        helm(
            *(*arguments, "--namespace", RELEASE),
            kubeconfig=self.cluster.kubeconfig,
            home=self.cluster.home,
        )

    def _names(self) -> set[str]:
        """Return the names of the cluster-scoped objects."""
        names = set()
        for path in CLUSTER_SCOPED_PATHS:
            found = self.cluster.request_existing("GET", path)
            names |= {
                f"{path.rpartition('/')[2]}/{each['metadata']['name']}"
                for each in (found or {"items": ()})["items"]
            }
        return names

    def _forget(self, path: str) -> None:
        self.cluster.request_existing("DELETE", path)
