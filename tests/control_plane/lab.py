"""A control plane with the chart's installed objects, and a namespace in it for one test.

A lab removes all objects that the next test's scheduler would see. For fixtures.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Self

from control_plane.calls import ApiRefused
from control_plane.chart import install
from control_plane.objects import Namespace, add_node, add_project, job, pod
from control_plane.plane import ControlPlane
from waiting import eventually

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/runai/leases/runai-scheduler"
PROJECTS = "/apis/jupyter-runai.dev/v1alpha1/projects"
NUMBERS = itertools.count(1)


class ClusterLab:
    """A namespace, with nodes and projects, for one test; `with` removes them."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.number = next(NUMBERS)
        self.namespace = self.add_namespace()
        self._namespaces = [self.namespace]
        self._nodes: list[str] = []
        self._extra_paths: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def add_namespace(self, project: str = "") -> Namespace:
        name = f"lab-{self.number}" + (f"-{project}" if project else "")
        namespace = Namespace(self.plane, name, project)
        if project:
            self._namespaces.append(namespace)
        return namespace

    def node(self, name: str, gpus: int = 0, **fields: Any) -> None:
        self._nodes.append(name)
        add_node(self.plane, name, gpus, **fields)

    def project(self, name: str, **spec: Any) -> None:
        add_project(self.plane, name, **spec)

    def storage_class(
        self, name: str, provisioner: str = "kubernetes.io/no-provisioner", **fields: Any
    ) -> None:
        """Add a class with volumes that wait for their first pod, by default."""
        body = {"metadata": {"name": name}, "provisioner": provisioner}
        body |= {"volumeBindingMode": "WaitForFirstConsumer", **fields}
        self._extra_paths.append(f"{CLASSES}/{name}")
        self.plane.request("POST", CLASSES, body)

    def volume(self, name: str, *nodes: str, of_class: str, **spec: Any) -> None:
        """Add a disk accessible from these nodes."""
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
        volume_spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": of_class,
            "local": {"path": "/disk"},
            "nodeAffinity": {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
            },
            "persistentVolumeReclaimPolicy": "Retain",
            **spec,
        }
        self._extra_paths.append(f"{VOLUMES}/{name}")
        self.plane.request("POST", VOLUMES, {"metadata": {"name": name}, "spec": volume_spec})

    def forget_projects(self) -> None:
        """Remove all projects, including ones that the test did not make."""
        for project in self.plane.request("GET", PROJECTS)["items"]:
            self.forget(f"{PROJECTS}/{project['metadata']['name']}")

    def remove(self) -> None:
        """Remove all objects that the next test's scheduler would see."""
        self.forget_projects()
        self.forget(LEASE)
        self._empty("runai-reservation")
        for namespace in self._namespaces:
            path = f"/apis/batch/v1/namespaces/{namespace.name}/jobs"
            self.plane.request("DELETE", path, {"propagationPolicy": "Background"})
            self._empty(namespace.name)
            self.plane.request("DELETE", f"/api/v1/namespaces/{namespace.name}")
        for name in self._nodes:
            self.forget(f"/api/v1/nodes/{name}")
        for path in self._extra_paths:
            self.forget(path)
            self._release(path)

    def _empty(self, namespace: str) -> None:
        pods = f"/api/v1/namespaces/{namespace}/pods"

        def is_empty() -> bool:
            self.plane.request("DELETE", pods, {"gracePeriodSeconds": 0})
            return not self.plane.request("GET", pods)["items"]

        eventually(is_empty, what=f"{namespace} is empty")

    def _release(self, path: str) -> None:
        """Remove an object's finalizers: a volume, for one, waits for the end of its claim."""
        body = {"metadata": {"finalizers": None}}
        self.plane.request_existing(
            "PATCH", path, body, content_type="application/merge-patch+json"
        )

    def forget(self, path: str) -> None:
        """Remove an object, if it exists."""
        self.plane.request_existing("DELETE", path)


def allow_jobs(plane: ControlPlane, namespace: str) -> None:
    """Bind the service's role for jobs, like the chart does in the notebooks' namespace."""
    binding = {
        "metadata": {"name": "runai-jobs"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "runai-jobs",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "runai-scheduler", "namespace": "runai"}],
    }
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    plane.request("POST", path, binding)


@contextlib.contextmanager
def installed() -> Iterator[ControlPlane]:
    """Start a control plane and install the chart; its own pods wait, as no scheduler runs."""
    with ControlPlane() as started:
        install(started)

        def served() -> bool:
            try:
                started.request("GET", PROJECTS)
            except ApiRefused:  # 404, then 429 for a moment
                return False
            return True

        eventually(served, what="projects are served")

        def policy_is_in_force() -> bool:
            plain = job("plain")
            del plain["spec"]["podFailurePolicy"], plain["spec"]["podReplacementPolicy"]
            path = "/apis/batch/v1/namespaces/default/jobs?dryRun=All"
            return "podFailurePolicy" in started.request("POST", path, plain)["spec"]

        eventually(policy_is_in_force, what="the admission policy is in force")

        def shows_no_devices() -> bool:
            created = started.request(
                "POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("p", 0)
            )
            return "env" in created["spec"]["containers"][0]

        eventually(shows_no_devices, what="the policy of visible devices is in force")

        def refuses_forgeries() -> bool:
            forged = pod("forged", 0, annotations={"runai/devices": "{}"})
            try:
                started.request("POST", path, forged)
            except ApiRefused as refused:
                return "by the scheduler alone" in str(refused)
            return False

        path = "/api/v1/namespaces/default/pods?dryRun=All"
        eventually(refuses_forgeries, what="the policy of granted devices is in force")
        yield started
