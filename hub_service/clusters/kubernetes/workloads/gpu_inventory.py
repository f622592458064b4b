"""Devices of each node, and their identities: which UUID the core's number stands for.

A number only counts until somebody has the device and its agent, or its reservation, says which one
it is. What nobody has is named in the order in which the agent counts.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_keeper import Sharing
from runai.hub_service.clusters.kubernetes.informers.job_informers import Changes
from runai.hub_service.clusters.kubernetes.objects.core_objects import Machine, Pod
from runai.hub_service.clusters.kubernetes.snapshot.gpu_memory import Sizes
from runai.hub_service.model.cluster import Seen
from runai.hub_service.model.device import Device


class Inventory:
    """Devices of one cluster's nodes, counted once between two changes."""

    def __init__(self, cache: Cache, changes: Changes, sharing: Sharing, sizes: Sizes) -> None:
        """Count nothing yet; `sharing` and `sizes` learn what nodes' agents see."""
        self._cache = cache
        self._changes = changes
        self._sharing = sharing
        self._sizes = sizes
        self._counted: Mapping[str, Sequence[Device]] = {}
        self._counted_at: asyncio.Event | None = None

    async def devices(self) -> Mapping[str, Sequence[Device]]:
        """Return the devices of each node; those that nobody has told us of have numbers only."""
        machines = self._cache.informers.machines
        await machines.listed()
        if self._counted_at is not self._changes.next:  # each node's agent asks, each second
            pods = self._cache.pods()
            known = named(pods, self._cache.slots.held(pods), self._sharing.devices_of)
            self._counted, self._counted_at = (
                {
                    name: inventory(machine, known.get(name, {}), self._sharing.devices_on(name))
                    for name, machine in sorted(machines.objects.items())
                },
                self._changes.next,
            )
        return self._counted

    async def note_holders(self, node: str, seen: Seen) -> None:
        """Take note of a node's devices and of who has them."""
        are_new = [self._sharing.learn(node, seen), self._sizes.learn(node, seen.devices)]
        if any(are_new):
            self._changes.signal()

    async def note_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Take out those that are shared; the device plugin takes all others from its node."""
        if self._sharing.learn_faults(node, faults):
            self._changes.signal()


def named(
    pods: Iterable[Pod],
    slots: Mapping[str, tuple[int, ...]],
    devices_of: Callable[[Pod], Sequence[str]],
) -> dict[str, dict[int, str]]:
    """Return the UUIDs of devices that pods have, by node and number, as far as they are known."""
    found: dict[str, dict[int, str]] = {}
    for pod in pods:
        numbers, uuids = slots.get(pod.uid, ()), devices_of(pod)
        if len(numbers) == len(uuids):
            found.setdefault(pod.node, {}).update(zip(numbers, uuids, strict=True))
    return found


def inventory(
    machine: Machine, known: Mapping[int, str], counted: Sequence[Device]
) -> Sequence[Device]:
    """Return the devices of a node by number; `counted` are those that its agent has found."""
    count = max(machine.gpus, len(counted), 1 + max(known, default=-1))
    found = {device.uuid: device for device in counted}
    rest = (uuid for uuid in found if uuid not in known.values())
    drawn = []
    for number in range(count):
        uuid = known.get(number) or next(rest, "")
        device = found.get(uuid)
        drawn.append(
            Device(
                number,
                uuid or f"{machine.name}/{number}",
                machine.gpu_type or (device.name if device else "GPU"),
                machine.gpu_memory_mib or (device.memory_mib if device else 0),
                simulated=device is not None and device.simulated,
                fault=device.fault if device else "",
            )
        )
    return drawn
