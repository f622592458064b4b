"""Reservation pods: each holds one device for the pods that share it.

To the device plugin, the kubelet and other schedulers the device is in use. A pod's name is derived
from its node and the first pod that shares the device, so creating it twice has no effect. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    GPU_RESOURCE,
    RESERVATIONS,
    RESERVED_DEVICE,
    RESERVED_MIB,
    SCHEDULER,
    Pod,
)

PODS = f"/api/v1/namespaces/{RESERVATIONS}/pods"
GROUP = "runai-gpu-group"
PRIORITY_CLASS = "runai-reservation"
IMAGE = "registry.k8s.io/pause:3.10"
"""The container does nothing; nodes have this image already, or pull the smallest there is."""

Slot = tuple[str, int]
"""A node and the number of one of its devices."""


@dataclass(frozen=True, slots=True)
class DeviceReservation:
    """The reservation of one shared device."""

    name: str
    pod: Pod | None
    """The reservation pod; None: lost, or not created yet."""
    device: str = ""
    """The UUID of the shareable device; "" if unknown or ambiguous."""


def reservation_name(node: str, group: str) -> str:
    """Return the name of the reservation pod of a group on a node."""
    return f"gpu-res-{sha256(f'{node}/{group}'.encode()).hexdigest()[:16]}"


def device_reservations(
    pods: Iterable[Pod], device_numbers: Mapping[str, tuple[int, ...]]
) -> dict[Slot, DeviceReservation]:
    """Return the reservation of each shared device; `device_numbers` are by pod's UID.

    A device is shareable if its reservation pod has it and is not being deleted, and no pod got
    another device under the same reservation name.
    """
    all_pods = list(pods)
    devices_by_name: dict[str, set[str]] = {}
    reservations: dict[Slot, DeviceReservation] = {}
    for pod in all_pods:
        if pod.grant is not None and pod.uses_node and pod.uid in device_numbers:
            shares = zip(
                pod.grant.reservations, pod.grant.devices, device_numbers[pod.uid], strict=True
            )
            for name, device, number in shares:
                devices_by_name.setdefault(name, set()).add(device)
                reservations[pod.node, number] = DeviceReservation(name, None)
    claimed: set[str] = set()
    active_pods = (
        pod
        for pod in all_pods
        if pod.is_reservation and pod.uses_node and pod.uid in device_numbers
    )
    for pod in sorted(active_pods, key=lambda pod: (pod.created, pod.name)):
        is_shareable = (
            pod.deleted is None
            and devices_by_name.get(pod.name, {pod.device}) == {pod.device}
            and pod.device not in claimed
        )
        claimed.add(pod.device)
        number = device_numbers[pod.uid][0]
        device = pod.device if is_shareable else ""
        reservations[pod.node, number] = DeviceReservation(pod.name, pod, device)
    return reservations


def unreserved_devices(pods: Iterable[Pod]) -> list[tuple[Pod, str, str]]:
    """Return shared devices without a reservation pod: sharing pod, reservation, device."""
    all_pods = list(pods)
    reserved = {
        pod.name: pod.device
        for pod in all_pods
        if pod.is_reservation and pod.uses_node and pod.deleted is None
    }
    return [
        (pod, name, device)
        for pod in all_pods
        if pod.grant is not None and pod.uses_node and pod.deleted is None
        for name, device in zip(pod.grant.reservations, pod.grant.devices, strict=True)
        if reserved.get(name) != device
    ]


def manifest(
    name: str, node: str, image: str = IMAGE, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a reservation pod that can only be bound to its node."""
    is_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    only_node = {"nodeSelectorTerms": [{"matchFields": [is_node]}]}
    container = {
        "name": "hold",
        "image": image,
        # A base image may request all devices; this container needs none.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "resources": {
            "requests": {"cpu": "1m", "memory": "16Mi"},
            "limits": {"memory": "64Mi", GPU_RESOURCE: "1"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**(labels or {}), "app.kubernetes.io/managed-by": SCHEDULER, GROUP: name},
            "annotations": {
                "karpenter.sh/do-not-disrupt": "true",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            },
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "priorityClassName": PRIORITY_CLASS,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": only_node}
            },
            # The reservation ends with the pods that share the device, in spite of any taint.
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # With 0 the API server would delete the pod before its kubelet has freed the device.
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Always",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def device_annotations(pod: Pod, device: str, mib: int) -> dict[str, Any]:
    """Return the patch that stores a reservation pod's device and memory as annotations."""
    annotations = {RESERVED_DEVICE: device} | ({RESERVED_MIB: str(mib)} if mib else {})
    return {"metadata": {"uid": pod.uid, "annotations": annotations}}
