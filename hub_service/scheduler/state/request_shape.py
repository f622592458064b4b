"""Request shapes: a worker's resources and its allowed nodes (P3, P5).

Workers with equal requests share one shape, so that nodes are compared once per shape and not once
per worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import (
    WHOLE_GPU,
    fraction_of_memory,
    memory_of_fraction,
)
from runai.hub_service.scheduler.model.snapshot import Node, Worker

NODE_TYPE_LABEL = "runai/node-type"


class RequestShape:
    """Shape of a request, shared by all workers with equal requests.

    A worker takes `milli` (1000 is a whole device) on each of `devices` distinct devices, or `mib`
    if it requests memory. `nodes` are the nodes that could ever fit it (P5), as indices into the
    nodes sorted by name.
    """

    __slots__ = (
        "cpu",
        "devices",
        "lossy",
        "memory",
        "mib",
        "milli",
        "min_quota",
        "nodes",
        "order",
        "quota",
        "returning",
    )

    def __init__(
        self, *, order: int, devices: int, milli: int, mib: int, cpu: int, memory: int
    ) -> None:
        self.order = order
        self.devices = devices
        self.milli = milli
        self.mib = mib
        self.cpu = cpu
        self.memory = memory
        self.nodes: frozenset[int] = frozenset()
        self.lossy: tuple[int, ...] = ()
        """Nodes that it may use and that offer fewer devices than they have."""
        self.returning: frozenset[int] = frozenset()
        """Nodes that it may use and that have devices which may return."""
        self.quota = devices * milli
        """Amount that it counts for in quotas while it is pending (P3)."""
        self.min_quota = self.quota
        """Amount that it counts for on the device that counts for the minimum."""

    @property
    def is_whole(self) -> bool:
        """Return True if it takes whole devices."""
        return self.milli == WHOLE_GPU

    def mib_on(self, device_mib: int) -> int:
        """Return the memory that it takes of a device of this size."""
        return self.mib or memory_of_fraction(self.milli, device_mib)


class Booking(NamedTuple):
    """Place and resources of a worker; node -1 is unknown to the snapshot."""

    node: int
    devices: tuple[int, ...]
    milli: int
    mib: int
    cpu: int
    memory: int
    quota: int
    shares: int
    """Milli-GPU per device that quotas count: `milli`, or the fraction of the memory."""


class RequestShapes:
    """All request shapes of a snapshot, created on first use."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Start empty, for nodes in the order of their names."""
        self._nodes = nodes
        self._shape_by_request: dict[tuple[object, ...], RequestShape] = {}

    def __len__(self) -> int:
        return len(self._shape_by_request)

    def shape_of(self, worker: Worker, node_types: tuple[tuple[str, ...], ...]) -> RequestShape:
        """Return a worker's shape; `node_types` are the restrictions of each of its projects."""
        request = (
            worker.gpus,
            worker.gpu_memory_mib,
            worker.devices_wanted,
            worker.cpu_milli,
            worker.memory_mib,
            worker.gpu_types,
            worker.nodes,
            tuple(sorted(worker.node_selector.items())) if worker.node_selector else (),
            node_types,
        )
        shape = self._shape_by_request.get(request)
        if shape is None:
            shape = self._shape_by_request[request] = self._new_shape(worker, node_types)
        return shape

    def _new_shape(self, worker: Worker, node_types: tuple[tuple[str, ...], ...]) -> RequestShape:
        memory = worker.gpu_memory_mib or 0
        if memory:
            devices, milli = worker.devices_wanted, 0
        elif worker.gpus > WHOLE_GPU:
            devices, milli = worker.gpus // WHOLE_GPU, int(WHOLE_GPU)
        else:
            devices, milli = (worker.devices_wanted if worker.gpus else 0), int(worker.gpus)
        shape = RequestShape(
            order=len(self._shape_by_request),
            devices=devices,
            milli=milli,
            mib=memory,
            cpu=worker.cpu_milli,
            memory=worker.memory_mib,
        )
        allowed = [
            (index, node)
            for index, node in enumerate(self._nodes)
            if _may_use(node, worker, node_types)
        ]
        shape.nodes = frozenset(index for index, node in allowed if _fits_empty(node, shape))
        if devices:
            shape.lossy = tuple(index for index, node in allowed if node.loss)
            shape.returning = frozenset(i for i, node in allowed if node.returning_devices)
        if memory:
            # A pending worker counts by the smallest device that it may use (P3). Where that is too
            # much for a quota, it is tried on larger ones alone, and counts by those.
            sizes = [self._nodes[index].device_memory_mib for index in shape.nodes]
            shape.quota = devices * fraction_of_memory(memory, min(sizes, default=memory))
            shape.min_quota = devices * fraction_of_memory(memory, max(sizes, default=memory))
        return shape

    def book(self, shape: RequestShape, node: int, devices: tuple[int, ...]) -> Booking:
        """Return the booking of a worker of this shape at a place."""
        full = self._nodes[node].device_memory_mib if node >= 0 else 0
        shares, mib = shape.milli, shape.mib_on(full)
        quota = shape.quota
        if shape.mib and full:
            shares = fraction_of_memory(shape.mib, full)
            quota = shares * shape.devices
        return Booking(node, devices, shape.milli, mib, shape.cpu, shape.memory, quota, shares)


def _may_use(node: Node, worker: Worker, node_types: tuple[tuple[str, ...], ...]) -> bool:
    """Return True if a worker is allowed on a node (P5)."""
    labels = node.labels
    return (
        node.schedulable
        and (worker.nodes is None or node.name in worker.nodes)
        and (not worker.gpu_types or node.gpu_type in worker.gpu_types)
        and all(labels.get(key) == value for key, value in worker.node_selector.items())
        and all(labels.get(NODE_TYPE_LABEL) in allowed for allowed in node_types)
    )


def _fits_empty(node: Node, shape: RequestShape) -> bool:
    """Return True if the empty node has enough of every resource."""
    return (
        node.usable_devices >= shape.devices
        and node.device_memory_mib >= shape.mib
        and (node.cpu_milli is None or node.cpu_milli >= shape.cpu)
        and (node.memory_mib is None or node.memory_mib >= shape.memory)
    )
