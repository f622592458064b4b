"""How much memory the devices of nodes have: as the node's label says, or else as its agent counts.

The label is NVIDIA's feature discovery's, which not every cluster runs; without either a part of a
device has no limit, and nobody who asks for memory fits anywhere. What a node's devices have is one
figure to the core, and to all who start there. Reservation pods keep it for the next service, which
may start somebody before the agent reports to it. Owned by `scheduling`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runai.hub_service.clusters.kubernetes.objects.core_objects import Machine, Pod
from runai.hub_service.model.device import Device


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
