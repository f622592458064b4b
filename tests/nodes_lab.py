"""Actions of tests on real nodes: install the chart, make pods that print their devices.

`real_nodes` has the nodes themselves.
"""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from control_plane.chart import install
from control_plane.lab import ClusterLab
from control_plane.objects import job, pod, printed_devices, printing_devices
from control_plane.plane import ControlPlane
from nodes_hub import begin_hub, provide_tokens
from real_nodes.cluster import RealCluster
from real_nodes.images import PAUSE, RUNAI
from runai.hub_service.client import Client
from waiting import eventually

COMES_UP_WITHIN_S = 180
RESERVATIONS = "/api/v1/namespaces/runai-reservation/pods"


class NodesLab(ClusterLab):
    """A namespace on real nodes, which need time to release a pod's devices."""

    def __init__(self, cluster: RealCluster) -> None:
        super().__init__(cluster.plane)
        self.cluster = cluster

    def seen_project(self, service: Client, name: str, **spec: Any) -> None:
        """Add a project, and wait until the service's watch has delivered it."""
        self.project(name, **spec)
        eventually(
            lambda: name in [project.name for project in service.projects()],
            what=f"{name} is seen",
        )

    def wait_until_ready(self, name: str) -> dict[str, Any]:
        """Wait until a pod is ready; return it."""

        def ready() -> dict[str, Any]:
            found = self.namespace.pod(name)
            conditions = {c["type"]: c["status"] for c in found["status"].get("conditions", ())}
            assert conditions.get("Ready") == "True", found["status"]
            return found

        return eventually(ready, within=150, what=f"{name} runs")

    def visible_devices(self, name: str) -> str:
        """Return the devices that a pod's container sees, once it runs."""
        self.wait_until_ready(name)
        path = f"/api/v1/namespaces/{self.namespace.name}/pods/{name}/log"
        return printed_devices(
            eventually(lambda: self.plane.request("GET", path), what=f"{name} prints its devices")
        )

    def running_pods(self, job: str) -> list[dict[str, Any]]:
        """Wait until a Job has a running pod; return all its running pods."""

        def found() -> list[dict[str, Any]]:
            pods = self.namespace.pods(job)
            return [pod for pod in pods if pod["status"]["phase"] == "Running" and _stays(pod)]

        return eventually(found, within=COMES_UP_WITHIN_S, what=f"{job} runs")

    def condition(self, name: str, kind: str) -> dict[str, str]:
        """Return a condition of a pod, empty before the pod has it."""
        found = self.namespace.pod(name)["status"].get("conditions", ())
        return next((condition for condition in found if condition["type"] == kind), {})

    def renew_agent(self, node: str, service: Client) -> None:
        """Replace a node's agent, and wait until the new one reports healthy devices."""
        selected = (
            f"labelSelector=app.kubernetes.io/component=agent&fieldSelector=spec.nodeName={node}"
        )
        self.plane.request("DELETE", f"/api/v1/namespaces/runai/pods?{selected}")

        def is_well() -> bool:
            return all(device.healthy for found in service.nodes() for device in found.devices)

        eventually(is_well, within=COMES_UP_WITHIN_S, what="all devices are healthy")

    @contextlib.contextmanager
    def cordoned(self, node: str) -> Iterator[None]:
        """Cordon a node for the block."""
        self.plane.kubectl("cordon", node)
        yield
        self.plane.kubectl("uncordon", node)

    @contextlib.contextmanager
    def tainted(self, node: str, key: str, effect: str) -> Iterator[None]:
        """Taint a node for the block."""
        self.plane.kubectl("taint", "node", node, f"{key}=yes:{effect}")
        yield
        self.plane.kubectl("taint", "node", node, f"{key}-")

    def event_message(self, name: str, reason: str) -> str:
        """Return the message of a pod's Event with this reason, once there is one."""

        def found() -> str:
            return next(
                (
                    str(event["message"])
                    for event in self.namespace.events()
                    if (event["reason"], event["involvedObject"]["name"]) == (reason, name)
                ),
                "",
            )

        return eventually(found, what=f"an Event {reason} of {name}")

    def kubelet_allocations(self, node: int) -> dict[str, list[str]]:
        """Return the devices of each pod, from the kubelet's own records."""
        return self.cluster.nodes[node].allocations()

    def reservations(self) -> dict[str, dict[str, Any]]:
        """Return the reservation pods, by their device."""
        found = self.plane.request("GET", RESERVATIONS)["items"]
        notes = (pod["metadata"].get("annotations", {}) for pod in found)
        devices = [annotations.get("run.ai/reserve_for_gpu_index", "") for annotations in notes]
        return dict(zip(devices, found, strict=True))

    def remove(self) -> None:
        """Delete everything; pods that are force-deleted would go on running on their nodes."""
        self.forget_projects()
        path = f"/apis/batch/v1/namespaces/{self.namespace.name}/jobs"
        self.plane.request("DELETE", path, {"propagationPolicy": "Background"})
        pods = f"/api/v1/namespaces/{self.namespace.name}/pods"
        self.plane.request("DELETE", pods)

        def is_empty() -> bool:
            # The scheduler removes the reservations of deleted pods.
            return not self.namespace.pods() and not self.reservations()

        eventually(is_empty, within=COMES_UP_WITHIN_S, what="its pods are gone")
        self.plane.request("DELETE", f"/api/v1/namespaces/{self.namespace.name}")


def session(
    name: str, gpus: int = 0, *, project: str, part: str = "", devices: int = 1, **spec: Any
) -> Any:
    """Return a session's pod that prints its devices, and then sleeps."""
    notes = {"gpu-fraction": part, "gpu-fraction-num-devices": str(devices)} if part else {}
    return printing_devices(pod(name, gpus, project=project, annotations=notes, **spec), RUNAI)


def training(name: str, gpus: int = 1, *, project: str) -> Any:
    """Return a Job of one such pod."""
    return printing_devices(job(name, gpus, project=project), RUNAI)


def foreign_whole_gpu_pod(name: str, gpus: int, **spec: Any) -> Any:
    """Return a pod of whole GPUs for Kubernetes' own scheduler, unless its spec names a node."""
    return printing_devices(pod(name, gpus, schedulerName="default-scheduler", **spec), RUNAI)


def on_node(node: str) -> dict[str, Any]:
    """Return the fields of a pod's spec that bind it to one node."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def install_chart(cluster: RealCluster) -> None:
    """Install the chart as an admin would; wait until its service and its agents work."""
    plane = cluster.plane
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": "runai"}})
    provide_tokens(plane)
    provide_volume(cluster)
    upgrade_chart(cluster, {})
    begin_hub(plane)

    def agents_report() -> bool:
        nodes = {n.name: [d.uuid for d in n.devices] for n in client.nodes()}
        return nodes == {node.name: node.devices for node in cluster.nodes}

    with service_of(plane) as client:
        eventually(agents_report, within=COMES_UP_WITHIN_S, what="agents report")


def chart_values() -> dict[str, Any]:
    """Return the values that the chart needs on these nodes."""
    name, _, tag = RUNAI.rpartition(":")
    return {
        "image": {"name": name, "tag": tag},
        "jobs": {"image": RUNAI, "exec": True},
        "reservations": {"image": PAUSE},
        # Tests take node 1 down.
        "nodeSelector": {"kubernetes.io/hostname": "node-0"},
    }


def upgrade_chart(cluster: RealCluster, changes: Mapping[str, Any]) -> None:
    """Install or upgrade the chart with changed values for these nodes."""
    settings = cluster.place / "values.json"
    settings.write_text(json.dumps({**chart_values(), **changes}))
    install(cluster.plane, "--values", str(settings))


def service_of(plane: ControlPlane) -> Client:
    """Return a client of the leading service, with the token that it shares with the hub."""

    def leads() -> str:
        path = "/api/v1/namespaces/runai/pods?labelSelector=runai/leads=true"
        for found in plane.request("GET", path)["items"]:
            if "deletionTimestamp" not in found["metadata"] and found["status"].get("podIP"):
                return str(found["status"]["podIP"])
        return ""

    address = eventually(leads, within=COMES_UP_WITHIN_S, what="a service leads")
    secret = plane.request("GET", "/api/v1/namespaces/runai/secrets/runai")["data"]
    token = b64decode(secret["hub-token"]).decode()
    return Client(f"http://{address}:8000/services/runai/", token, patience_s=30)


def provide_volume(cluster: RealCluster) -> None:
    """Create a volume for the history of the service."""
    folder = cluster.place / "history"
    folder.mkdir()
    folder.chmod(0o777)  # the kubelet does not apply fsGroup to hostPath volumes
    volume = {
        "metadata": {"name": "history"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "5Gi"},
            "hostPath": {"path": str(folder)},
        },
    }
    cluster.plane.request("POST", "/api/v1/persistentvolumes", volume)


def _stays(pod: Any) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def mounting(manifest: Any, claim: str) -> Any:
    """Let a pod mount a claim at /home, and write its visible devices to /home/seen."""
    spec = manifest["spec"]
    spec["volumes"] = [{"name": "home", "persistentVolumeClaim": {"claimName": claim}}]
    container = spec["containers"][0]
    container["volumeMounts"] = [{"name": "home", "mountPath": "/home"}]
    shell, option, runs = container["command"]
    container["command"] = [shell, option, f"echo $NVIDIA_VISIBLE_DEVICES >/home/seen; {runs}"]
    return manifest
