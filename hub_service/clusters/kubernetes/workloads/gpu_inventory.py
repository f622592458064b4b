"""Devices of each node, and the UUID behind each device number.

A number has no UUID until a pod holds the device and its agent, or its reservation, reports it.
Free devices are numbered in the order in which the agent lists them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_reconciler import (
    ReservationReconciler,
)
from runai.hub_service.clusters.kubernetes.informers.cluster_informers import ChangeSignals
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.snapshot.gpu_memory import NodeDeviceMemory
from runai.hub_service.model.cluster import NodeReport
from runai.hub_service.model.device import Device


class GpuInventory:
    """Devices of one cluster's nodes, listed once between two changes."""

    def __init__(
        self,
        cache: Cache,
        changes: ChangeSignals,
        sharing: ReservationReconciler,
        sizes: NodeDeviceMemory,
    ) -> None:
        """Begin with no device listed; `sharing` and `sizes` receive the agents' reports."""
        self._cache = cache
        self._changes = changes
        self._sharing = sharing
        self._sizes = sizes
        self._devices: Mapping[str, Sequence[Device]] = {}
        self._built_at: asyncio.Event | None = None

    async def devices(self) -> Mapping[str, Sequence[Device]]:
        """Return the devices of each node; devices that no agent has reported have only numbers."""
        nodes = self._cache.informers.nodes
        await nodes.listed()
        if self._built_at is not self._changes.next:  # each node's agent calls this every second
            pods = self._cache.pods()
            device_numbers = self._cache.device_ids.update(pods)
            uuids = known_uuids(pods, device_numbers, self._sharing.devices_of)
            in_use = Counter[str]()
            for pod in pods:
                count = 1 + max(device_numbers.get(pod.uid, ()), default=-1)
                in_use[pod.node] = max(in_use[pod.node], count)
            self._devices, self._built_at = (
                {
                    name: inventory(
                        node, uuids.get(name, {}), self._sharing.devices_on(name), in_use[name]
                    )
                    for name, node in sorted(nodes.objects.items())
                },
                self._changes.next,
            )
        return self._devices

    async def note_holders(self, node: str, report: NodeReport) -> None:
        """Store a node's devices and their holders."""
        is_new = self._sharing.store_report(node, report)
        if self._sizes.store(node, report.devices) or is_new:
            self._changes.wake_all()

    async def note_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Disable faulty shared devices; the device plugin removes unshared ones."""
        if self._sharing.store_faults(node, faults):
            self._changes.wake_all()


def known_uuids(
    pods: Iterable[Pod],
    device_numbers: Mapping[str, tuple[int, ...]],
    devices_of: Callable[[Pod], Sequence[str]],
) -> dict[str, dict[int, str]]:
    """Return the known UUIDs of devices that pods hold, by node and number."""
    known: dict[str, dict[int, str]] = {}
    for pod in pods:
        numbers, uuids = device_numbers.get(pod.uid, ()), devices_of(pod)
        if len(numbers) == len(uuids):
            known.setdefault(pod.node, {}).update(zip(numbers, uuids, strict=True))
    return known


def inventory(
    node: KubeNode, known: Mapping[int, str], reported: Sequence[Device], in_use: int = 0
) -> Sequence[Device]:
    """Return the devices of a node by number; `reported` are the ones its agent reports.

    `known` are UUIDs by number. Devices that it does not offer now are listed too; if its kubelet
    has forgotten how many there are, at least those with numbers below `in_use`, which pods hold.
    """
    count = max(node.most_gpus or in_use, len(reported), 1 + max(known, default=-1))
    by_uuid = {device.uuid: device for device in reported}
    unassigned = (uuid for uuid in by_uuid if uuid not in known.values())
    devices = []
    for number in range(count):
        uuid = known.get(number) or next(unassigned, "")
        device = by_uuid.get(uuid)
        devices.append(
            Device(
                number,
                uuid or f"{node.name}/{number}",
                node.gpu_type or (device.name if device else "GPU"),
                node.gpu_memory_mib or (device.memory_mib if device else 0),
                simulated=device is not None and device.simulated,
                fault=device.fault if device else "",
            )
        )
    return devices
