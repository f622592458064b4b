"""Give the devices of a node their identities: which UUID the core's number stands for.

A number only counts until somebody has the device and its agent, or its reservation, says which one
it is. What nobody has is named in the order in which the agent counts. Pure; called by `cluster`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from runai.hub_service.clusters.kubernetes.objects.core_objects import Machine, Pod
from runai.hub_service.model.device import Device


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


class Sizes:
    """What agents have counted, by node."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._counted: dict[str, int] = {}
        self._drawn: dict[str, tuple[Machine, Machine]] = {}
        """Nodes without the label, and the same with what was counted."""

    def learn(self, node: str, devices: Sequence[Device]) -> bool:
        """Take note of the devices of a node; tell whether their size is new.

        Where they differ, the smallest counts: nobody is promised what he may not get.
        """
        whole = [device for device in devices if not device.uuid.startswith("MIG-")]
        known = [device.memory_mib for device in whole or devices if device.memory_mib > 0]
        size = min(known, default=0)
        if not size or size == self._counted.get(node):
            return False
        self._counted[node] = size
        return True

    def of(self, machines: Iterable[Machine], pods: Iterable[Pod]) -> list[Machine]:
        """Return nodes with the size of their devices; the same objects while nothing changes.

        These are all: of others everything is forgotten.
        """
        here = list(machines)
        before, self._drawn = self._drawn, {}
        self._counted = {m.name: self._counted[m.name] for m in here if m.name in self._counted}
        noted: dict[str, int] = {}
        if any(m.gpus and not (m.gpu_memory_mib or m.name in self._counted) for m in here):
            for pod in pods:
                if pod.device_mib and pod.is_reservation:
                    noted[pod.node] = min(pod.device_mib, noted.get(pod.node, pod.device_mib))
        sizes = noted | self._counted
        return [self._sized(m, sizes.get(m.name, 0), before.get(m.name)) for m in here]

    def _sized(self, machine: Machine, size: int, known: tuple[Machine, Machine] | None) -> Machine:
        if machine.gpu_memory_mib or not size:
            return machine
        if known is None or known[0] is not machine or known[1].gpu_memory_mib != size:
            known = machine, replace(machine, gpu_memory_mib=size)
        self._drawn[machine.name] = known
        return known[1]
