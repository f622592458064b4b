"""Device bookings on the nodes that a plan names.

A start is refused if its devices have been given to another pod since the plan was made. Pure.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import Slot
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import shares_of
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import NominatedPlacement
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, memory_of_fraction
from runai.hub_service.scheduler.model.snapshot import (
    DeviceShare,
    Move,
    Plan,
    Reserve,
    Resize,
    Start,
)


class DeviceBookings:
    """Device bookings per node, by the places of workers."""

    def __init__(self, nodes: Mapping[str, int], memory_mib: Mapping[str, int]) -> None:
        """Begin with all devices free.

        `nodes` are device counts, `memory_mib` the size of each device in MiB.
        """
        self._nodes = nodes
        self._memory_mib = memory_mib
        self._bookings: dict[Slot, dict[str, tuple[int, int]]] = defaultdict(dict)
        """Booking by place: milli-GPU, and MiB if the pod asks for memory."""

    def book(self, pod: Pod, node: str, devices: Iterable[DeviceShare]) -> None:
        """Book devices, or shares of them, for a pod."""
        for share in devices:
            mib = 0 if pod.device_request is None else pod.device_request.mib
            self._bookings[node, share.device][pod.place] = (share.gpus, mib)

    def device_mib(self, node: str) -> int:
        """Return the memory of each device of a node in MiB; 0: unknown."""
        return self._memory_mib.get(node, 0)

    def devices_of(self, pod: Pod) -> set[int]:
        """Return the devices that a pod has booked on its node."""
        bookings = self._bookings.items()
        return {
            device
            for (node, device), shares_by_place in bookings
            if node == pod.node and pod.place in shares_by_place
        }

    def try_book(self, pod: Pod, node: str, devices: Sequence[DeviceShare]) -> str:
        """Book devices for a pod; return "" or why they are not free."""
        if missing := self.missing_device(node, (share.device for share in devices)):
            return missing
        mib = 0 if pod.device_request is None else pod.device_request.mib
        for share in devices:
            other_shares = [
                booked
                for place, booked in self._bookings[node, share.device].items()
                if place != pod.place
            ]
            if not self._fit([*other_shares, (share.gpus, mib)], self._memory_mib.get(node, 0)):
                return f"device {share.device} of {node} has no room for it"
        self.book(pod, node, devices)
        return ""

    @staticmethod
    def _fit(shares: Sequence[tuple[int, int]], device_mib: int) -> bool:
        """Return True if shares, each of milli-GPU and MiB, fit on one device (P3)."""
        if not any(mib for _milli, mib in shares):
            return sum(milli for milli, _mib in shares) <= WHOLE_GPU
        booked = (mib or memory_of_fraction(milli, device_mib) for milli, mib in shares)
        return sum(booked) <= device_mib

    def missing_device(self, node: str, devices: Iterable[int]) -> str:
        """Return a sentence about a node or device that does not exist, or ""."""
        if node not in self._nodes:
            return f"there is no node {node}"
        missing = [device for device in devices if device >= self._nodes[node]]
        return f"node {node} has no device {missing[0]}" if missing else ""


WITHOUT_GPU = 1000
"""Elements of an array without GPUs that may start in one cycle."""


def max_fitting_pods(request: Pod, nodes: Collection[KubeNode]) -> int:
    """Return an upper bound of the pods with this request that the nodes' devices could hold.

    An array with one element more requests more than all devices, so its fair share is that of any
    larger array. The bound ignores where devices are, and counts memory as a part of the largest.
    """
    device_request, devices = request.device_request, sum(node.most_gpus for node in nodes)
    if device_request is None:
        return devices // request.gpus if request.gpus else WITHOUT_GPU
    fractions = {device_request.milli_of(node.gpu_memory_mib) for node in nodes}
    smallest = min(fractions - {0}, default=0)
    return WHOLE_GPU * devices // smallest if smallest else 0


def device_bookings(
    plan: Plan,
    nodes: Iterable[KubeNode],
    pods: Iterable[Pod],
    device_numbers: Mapping[str, tuple[int, ...]],
    groups: Iterable[PodGroup],
    nominations: Mapping[str, NominatedPlacement],
) -> DeviceBookings:
    """Return the device bookings on the plan's nodes.

    A stopping pod keeps its devices until it is gone. A pod that restarts on other devices books
    both sets, so that no other pod gets the new ones.
    """
    named_nodes = {d.node for d in plan.decisions if isinstance(d, Start | Reserve | Move | Resize)}
    plan_nodes = [node for node in nodes if node.name in named_nodes]
    # Any device may be a lost one, so lost devices are bookable too, unless the node offers none.
    counts = {node.name: node.gpus and node.most_gpus for node in plan_nodes}
    bound_pods = [pod for pod in pods if pod.node in counts and pod.uses_node]
    for pod in bound_pods:
        highest = max(device_numbers.get(pod.uid, ()), default=-1)
        counts[pod.node] = max(counts[pod.node], 1 + highest)
    bookings = DeviceBookings(counts, {node.name: node.gpu_memory_mib for node in plan_nodes})
    own_pods = {pod.uid: pod for group in groups for pod in group.pods if pod.node in counts}
    for pod in bound_pods:
        if not pod.is_reservation:
            shares = shares_of(pod, device_numbers.get(pod.uid, ()))
            # The group's copy of a pod has the place by which decisions find its booking.
            bookings.book(own_pods.get(pod.uid, pod), pod.node, shares)
    for pod in own_pods.values():
        if pod.may_be_resized and (nomination := nominations.get(pod.place)) is not None:
            shares = tuple(DeviceShare(device, nomination.gpus) for device in nomination.devices)
            bookings.book(pod, nomination.node, shares)
    return bookings
