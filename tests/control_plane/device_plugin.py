"""A node's device plugin, kubelet and agent, simulated for the GPUs of nodes that kwok plays.

    devices = DevicePlugin(lab.plane, {"gpu-0": ["GPU-a", "GPU-b"]})
    devices.sync_pods()            # bound pods get their devices, or are rejected
    scheduler.call(...)            # or `devices.report(scheduler)`: like our agent

Each step runs when the test calls it, so the test decides on events between two API calls.
Each step asserts that no device is oversubscribed.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from control_plane.plane import ControlPlane
from control_plane.scheduling import Scheduler
from runai.hub_service.model.cluster import NodeReport
from runai.hub_service.model.device import Device

RESERVATIONS = "runai-reservation"
DEVICE = "run.ai/reserve_for_gpu_index"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class DevicePlugin:
    """The devices of some nodes, and the pods that have them."""

    def __init__(self, plane: ControlPlane, nodes: Mapping[str, Sequence[str]]) -> None:
        self.plane = plane
        self.nodes = {name: list(devices) for name, devices in nodes.items()}
        self.has: dict[str, tuple[str, list[str]]] = {}
        """UUIDs by the pod's UID, with its `namespace/name`."""
        self.annotates = True
        """Whether a step annotates reservation pods with their device."""
        self.pods_to_reject = 0
        """Number of the next pods to reject, like a kubelet that has lost a race."""
        self._rejected: set[str] = set()
        """UIDs: kwok may not know of the rejection yet, and report once more that they run."""
        self.names: set[str] = set()
        """Names of all reservation pods seen so far."""
        self.is_strict = True
        """Whether pods other than reservations must not have a shared device as a whole."""
        self.first = ""
        """Name of the pod that gets its devices first of all pods started since the last step."""
        self.memory_mib = 0
        """Memory of each device in the agents' reports; 0: they report none."""
        self.max_shared: dict[str, int] = {}
        """Maximum milli-GPU shared of each device at any step."""

    def sync_pods(self) -> list[dict[str, Any]]:
        """Give devices to pods bound since the last step; return all pods."""
        pods: list[dict[str, Any]] = self.plane.request("GET", "/api/v1/pods")["items"]
        named = [p["metadata"] for p in pods]
        self.names |= {m["name"] for m in named if m["namespace"] == RESERVATIONS}
        running = [p for p in pods if _is_running(p)]
        running_uids = {p["metadata"]["uid"] for p in running}
        self.has = {uid: has for uid, has in self.has.items() if uid in running_uids}
        for pod in sorted(running, key=self._turn):
            uid, node = pod["metadata"]["uid"], pod["spec"]["nodeName"]
            if requested := _requested_gpus(pod):
                if uid not in self.has and node in self.nodes:
                    self._allocate(pod, node, requested)
                self._annotate(pod)
        self.check(running)
        return pods

    def report(self, scheduler: Scheduler, *, age: float = 0.0) -> None:
        """Report to the service like the agents; the data is `age` seconds old."""
        for node in self.nodes:
            pods = {key: tuple(has) for key, has in self.has.values() if has[0] in self.nodes[node]}
            devices = (
                Device(number, uuid, "Fake", self.memory_mib, simulated=False)
                for number, uuid in enumerate(self.nodes[node])
            )
            node_report = NodeReport(
                time.time() - age, pods, tuple(devices) if self.memory_mib else ()
            )
            scheduler.call(scheduler.cluster.note_holders(node, node_report))

    def check(self, running: Sequence[Mapping[str, Any]]) -> None:
        """Assert that no shared device is oversubscribed, or in use as a whole by another pod."""
        shared: dict[str, int] = {}
        for pod in running:
            granted = pod["metadata"].get("annotations", {}).get("runai/devices", "{}")
            for device, milli in json.loads(granted).items():
                shared[device] = shared.get(device, 0) + milli
        for device, milli in shared.items():
            self.max_shared[device] = max(milli, self.max_shared.get(device, 0))
            # Each of three parts by memory counts as a third, rounded up.
            assert milli <= 1002, f"{device} is shared by {milli} thousandths"
            holders = [key for key, has in self.has.values() if device in has]
            if not self.is_strict:
                continue
            assert all(key.startswith(RESERVATIONS) for key in holders), (device, holders)

    def reservations(self) -> list[dict[str, Any]]:
        """Return the existing reservation pods."""
        path = f"/api/v1/namespaces/{RESERVATIONS}/pods"
        found: list[dict[str, Any]] = self.plane.request("GET", path)["items"]
        return found

    # -- inside ------------------------------------------------------------------------------------

    def _turn(self, pod: Mapping[str, Any]) -> tuple[bool, str]:
        metadata = pod["metadata"]
        return metadata["name"] != self.first, metadata["resourceVersion"]

    def _allocate(self, pod: Mapping[str, Any], node: str, requested: int) -> None:
        allocated = set(itertools.chain.from_iterable(has for _key, has in self.has.values()))
        free = [device for device in self.nodes[node] if device not in allocated]
        uid = pod["metadata"]["uid"]
        if uid in self._rejected or len(free) < requested or self.pods_to_reject:
            self.pods_to_reject = max(0, self.pods_to_reject - (uid not in self._rejected))
            self._rejected.add(uid)
            self._fail(pod)
            return
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self.has[uid] = (key, free[:requested])

    def _fail(self, pod: Mapping[str, Any]) -> None:
        status = {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed due to requested number of devices unavailable",
        }
        self._patch(pod, "/status", {"status": status}, STRATEGIC)

    def _annotate(self, pod: Mapping[str, Any]) -> None:
        metadata = pod["metadata"]
        is_reservation = metadata["namespace"] == RESERVATIONS and metadata["uid"] in self.has
        if is_reservation and self.annotates and DEVICE not in metadata.get("annotations", {}):
            (device,) = self.has[metadata["uid"]][1]
            self._patch(pod, "", {"metadata": {"annotations": {DEVICE: device}}}, MERGE)

    def _patch(
        self, pod: Mapping[str, Any], part: str, change: dict[str, Any], content_type: str
    ) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}{part}"
        change.setdefault("metadata", {})["uid"] = metadata["uid"]
        self.plane.request_existing(
            *("PATCH", path, change), content_type=content_type, absent=(404, 409)
        )


def _is_running(pod: Mapping[str, Any]) -> bool:
    is_over = pod["status"].get("phase") in ("Succeeded", "Failed")
    return "nodeName" in pod["spec"] and not is_over


def _requested_gpus(pod: Mapping[str, Any]) -> int:
    limits = (c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"])
    return sum(int(of.get("nvidia.com/gpu", 0)) for of in limits)
