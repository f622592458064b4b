"""Nodes, namespaces, pods and Jobs of a test, as short as the test needs them.

Functions that create objects wait for the parts that controllers add (readiness, service accounts).
For tests and benchmarks with a cluster's `Calls`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from control_plane.calls import Calls
from waiting import eventually

SCHEDULER = "runai-scheduler"
PRINT_DEVICES = "echo sees $NVIDIA_VISIBLE_DEVICES; trap 'exit 0' TERM; tail -f /dev/null & wait"


def add_node(
    plane: Calls,
    name: str,
    gpus: int = 0,
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    status: Mapping[str, Any] | None = None,
    **allocatable: str,
) -> None:
    """Add a node and wait until it is ready; `status` adds fields of its kubelet's status."""
    resources = {"cpu": "32", "memory": "256Gi", "pods": "110", **allocatable}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
    node = {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
        },
        "spec": {"taints": list(taints)},
        "status": {"capacity": resources, "allocatable": resources, **(status or {})},
    }
    plane.request("POST", "/api/v1/nodes", node)

    def ready() -> bool:
        current = plane.request("GET", f"/api/v1/nodes/{name}")
        conditions = {c["type"]: c["status"] for c in current["status"].get("conditions", [])}
        keys = {taint["key"] for taint in current["spec"].get("taints", [])}
        return conditions.get("Ready") == "True" and "node.kubernetes.io/not-ready" not in keys

    eventually(ready, what=f"node {name} is ready")


def add_project(
    plane: Calls, name: str, *, labels: Mapping[str, str] | None = None, **spec: Any
) -> None:
    """Add a project."""
    project = {
        "apiVersion": "jupyter-runai.dev/v1alpha1",
        "kind": "Project",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec,
    }
    plane.request("POST", "/apis/jupyter-runai.dev/v1alpha1/projects", project)


def pod(
    name: str,
    gpus: int = 1,
    *,
    project: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod for our scheduler."""
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "image": "example/train", "resources": {"limits": limits}}
    project_label = {"runai/project": project} if project else {}
    return {
        "metadata": {
            "name": name,
            "labels": {**project_label, **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": {"schedulerName": SCHEDULER, "containers": [container], **spec},
    }


def job(
    name: str,
    gpus: int = 1,
    *,
    workers: int = 1,
    gang: bool = False,
    project: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a Job with pods for our scheduler; a gang's is an Indexed one.

    A single failure ends it; pauses are no failures, as in the Jobs that the service makes.
    """
    template = pod(name, gpus, project=project, labels=labels, annotations=annotations)
    del template["metadata"]["name"]
    template["spec"]["restartPolicy"] = "Never"
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return {
        "metadata": {"name": name},
        "spec": {
            "completions": workers,
            "parallelism": workers,
            "completionMode": "Indexed" if gang else "NonIndexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [disrupted]}]},
            "template": template,
            **spec,
        },
    }


def printing_devices(manifest: dict[str, Any], image: str) -> dict[str, Any]:
    """Let a pod, or the pods of a Job, print their devices, and then sleep."""
    spec = manifest["spec"].get("template", manifest)["spec"]
    spec |= {"terminationGracePeriodSeconds": 1}
    spec["containers"][0] |= {"image": image, "command": ["sh", "-c", PRINT_DEVICES]}
    return manifest


def printed_devices(log: str) -> str:
    """Return the devices in a container's log."""
    (line,) = (line for line in log.splitlines() if line.startswith("sees"))
    return line.removeprefix("sees").strip()


class Namespace:
    """One namespace, and operations on its objects."""

    def __init__(self, plane: Calls, name: str, project: str = "") -> None:
        """Create the namespace; return once it accepts pods."""
        self.plane = plane
        self.name = name
        labels = {"runai/project": project} if project else {}
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually(
            lambda: plane.request_existing("GET", account), what=f"namespace {name} takes pods"
        )

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create a pod, or a Job if the object has a template."""
        is_job = "template" in manifest["spec"]
        created: dict[str, Any] = self.plane.request(
            "POST", self._path("", is_job=is_job), manifest
        )
        return created

    def pods(self, job: str = "") -> list[dict[str, Any]]:
        """Return its pods, or the pods of one of its Jobs, by name."""
        found: list[dict[str, Any]] = self.plane.request("GET", self._path(""))["items"]
        label = "batch.kubernetes.io/job-name"
        return sorted(
            (p for p in found if not job or p["metadata"].get("labels", {}).get(label) == job),
            key=lambda p: str(p["metadata"]["name"]),
        )

    def pod(self, name: str) -> dict[str, Any]:
        """Return one pod."""
        found: dict[str, Any] = self.plane.request("GET", self._path(name))
        return found

    def job(self, name: str) -> dict[str, Any]:
        """Return one Job."""
        found: dict[str, Any] = self.plane.request("GET", self._path(name, is_job=True))
        return found

    def finish(self, name: str, exit_code: int = 0) -> None:
        """Let a running pod succeed."""
        exit_annotation = {"test/fails": str(exit_code)} if exit_code else {}
        self.annotate(name, {"test/runs-for": "1ms", **exit_annotation})

    def annotate(self, name: str, notes: Mapping[str, str]) -> None:
        """Write annotations of a pod."""
        self.plane.request(
            "PATCH",
            self._path(name),
            {"metadata": {"annotations": dict(notes)}},
            content_type="application/merge-patch+json",
        )

    def events(self) -> list[dict[str, Any]]:
        """Return its Events."""
        path = f"/api/v1/namespaces/{self.name}/events"
        found: list[dict[str, Any]] = self.plane.request("GET", path)["items"]
        return found

    def node_of(self, name: str) -> str:
        """Return the node that a pod is bound to; "" before that."""
        return str(self.pod(name)["spec"].get("nodeName", ""))

    def claim(self, name: str, *modes: str, of_class: str = "") -> None:
        """Create a claim of a volume; by default one node may mount it."""
        resources = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": list(modes or ("ReadWriteOnce",)), "resources": resources}
        if of_class:
            spec["storageClassName"] = of_class
        path = f"/api/v1/namespaces/{self.name}/persistentvolumeclaims"
        self.plane.request("POST", path, {"metadata": {"name": name}, "spec": spec})

    def delete(self, name: str, *, is_job: bool = False) -> None:
        """Delete a pod or a Job with its pods."""
        self.plane.request(
            "DELETE", self._path(name, is_job=is_job), {"propagationPolicy": "Background"}
        )

    def evict(self, name: str) -> None:
        """Evict a pod, as a drain of its node does."""
        self.plane.request("POST", f"{self._path(name)}/eviction", {"metadata": {"name": name}})

    def _path(self, name: str, *, is_job: bool = False) -> str:
        group, kind = ("/apis/batch/v1", "jobs") if is_job else ("/api/v1", "pods")
        return f"{group}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")
