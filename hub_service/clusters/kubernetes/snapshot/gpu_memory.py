"""Memory of the nodes' devices: from the node's label, else as its agent reports.

The label comes from NVIDIA's feature discovery, which not every cluster runs. Without either, a
share of a device has no limit, and a pod that asks for memory fits on no node. The core uses one
figure for all devices of a node. Reservation pods store it for the next service, which may start
pods before the agent reports.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.model.device import Device


class NodeDeviceMemory:
    """Device memory as reported by agents, by node."""

    def __init__(self) -> None:
        """Begin without reports."""
        self._reported: dict[str, int] = {}
        self._sized_nodes: dict[str, tuple[KubeNode, KubeNode]] = {}
        """Nodes without the label, and their copies with the reported size."""

    def store(self, node: str, devices: Sequence[Device]) -> bool:
        """Store the device size of a node; return True if it is new.

        If sizes differ, the smallest counts, so that no pod is promised more than it may get.
        """
        whole = [device for device in devices if not device.uuid.startswith("MIG-")]
        known = [device.memory_mib for device in whole or devices if device.memory_mib > 0]
        size = min(known, default=0)
        if not size or size == self._reported.get(node):
            return False
        self._reported[node] = size
        return True

    def apply_to(self, nodes: Iterable[KubeNode], pods: Iterable[Pod]) -> list[KubeNode]:
        """Return nodes with their device size, as the same objects while nothing changes.

        `nodes` are all nodes: reports of any other node are dropped.
        """
        all_nodes = list(nodes)
        before, self._sized_nodes = self._sized_nodes, {}
        self._reported = {
            node.name: self._reported[node.name]
            for node in all_nodes
            if node.name in self._reported
        }
        sizes: dict[str, int] = {}
        lacking = [node for node in all_nodes if node.gpus and not node.gpu_memory_mib]
        if any(node.name not in self._reported for node in lacking):
            for pod in pods:
                if pod.device_mib and pod.is_reservation:
                    sizes[pod.node] = min(pod.device_mib, sizes.get(pod.node, pod.device_mib))
        sizes |= self._reported
        return [
            self._with_memory(node, sizes.get(node.name, 0), before.get(node.name))
            for node in all_nodes
        ]

    def _with_memory(
        self, node: KubeNode, size: int, cached: tuple[KubeNode, KubeNode] | None
    ) -> KubeNode:
        """Return the node with its device size in MiB; cache the copy for the next call."""
        if node.gpu_memory_mib or not size:
            return node
        if cached is None or cached[0] is not node or cached[1].gpu_memory_mib != size:
            cached = node, replace(node, gpu_memory_mib=size)
        self._sized_nodes[node.name] = cached
        return cached[1]
