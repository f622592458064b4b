"""Kinds of request: what workers ask of nodes, and where they may go at all (P3, P5).

Knows how a worker becomes a kind that all its like share, so that nodes are compared with a kind
once and not with each worker. Knows nothing of what is free (`room`). Used by `state`.
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


class Kind:
    """One kind of request: every worker that asks for the same shares one object.

    A worker goes on `devices` distinct devices with `milli` on each (1000 is a whole one), or
    with `mib` where it asks for memory; `nodes` are those that could ever hold it (P5), as
    indices into the nodes sorted by name.
    """

    __slots__ = ("cpu", "devices", "memory", "mib", "milli", "nodes", "order", "quota")

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
        self.quota = devices * milli
        """What it counts for in quotas while it is pending (P3)."""

    @property
    def is_whole(self) -> bool:
        """Tell whether it takes devices for itself."""
        return self.milli == WHOLE_GPU

    def mib_on(self, device_mib: int) -> int:
        """Give the memory it books on a device of that size."""
        return self.mib or memory_of_fraction(self.milli, device_mib)


class Booking(NamedTuple):
    """Where a worker is or goes, and what it takes there; node -1 is one we do not know."""

    node: int
    devices: tuple[int, ...]
    milli: int
    mib: int
    cpu: int
    memory: int
    quota: int
    shares: int
    """The milli-GPU on each device as quotas count them: `milli`, or that of the memory."""


class Kinds:
    """Every kind that a snapshot's workers have, made as they are met."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Compare with these nodes, in the order of their names."""
        self._nodes = nodes
        self._known: dict[tuple[object, ...], Kind] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, worker: Worker, node_types: tuple[tuple[str, ...], ...]) -> Kind:
        """Give a worker's kind; `node_types` are what its projects restrict it to, each."""
        key = (
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
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = self._new_kind(worker, node_types)
        return kind

    def _new_kind(self, worker: Worker, node_types: tuple[tuple[str, ...], ...]) -> Kind:
        memory = worker.gpu_memory_mib or 0
        if memory:
            devices, milli = worker.devices_wanted, 0
        elif worker.gpus > WHOLE_GPU:
            devices, milli = worker.gpus // WHOLE_GPU, int(WHOLE_GPU)
        else:
            devices, milli = (worker.devices_wanted if worker.gpus else 0), int(worker.gpus)
        kind = Kind(
            order=len(self._known),
            devices=devices,
            milli=milli,
            mib=memory,
            cpu=worker.cpu_milli,
            memory=worker.memory_mib,
        )
        kind.nodes = frozenset(
            index
            for index, node in enumerate(self._nodes)
            if _may_use(node, worker, node_types) and _could_hold(node, kind)
        )
        if memory:
            # Pending, it counts by the smallest device that it may use (P3).
            sizes = [self._nodes[index].device_memory_mib for index in kind.nodes]
            size = min(sizes, default=memory)
            kind.quota = devices * fraction_of_memory(memory, size)
        return kind

    def book(self, kind: Kind, node: int, devices: tuple[int, ...]) -> Booking:
        """Make the booking of a worker of this kind at a place."""
        full = self._nodes[node].device_memory_mib if node >= 0 else 0
        shares, mib = kind.milli, kind.mib_on(full)
        quota = kind.quota
        if kind.mib and full:
            shares = fraction_of_memory(kind.mib, full)
            quota = shares * kind.devices
        return Booking(node, devices, kind.milli, mib, kind.cpu, kind.memory, quota, shares)


def _may_use(node: Node, worker: Worker, node_types: tuple[tuple[str, ...], ...]) -> bool:
    """Tell whether a worker may go on a node at all (P5)."""
    labels = node.labels
    return (
        node.schedulable
        and (worker.nodes is None or node.name in worker.nodes)
        and (not worker.gpu_types or node.gpu_type in worker.gpu_types)
        and all(labels.get(key) == value for key, value in worker.node_selector.items())
        and all(labels.get(NODE_TYPE_LABEL) in allowed for allowed in node_types)
    )


def _could_hold(node: Node, kind: Kind) -> bool:
    """Tell whether a node has enough of everything when it is empty."""
    return (
        node.usable_devices >= kind.devices
        and node.device_memory_mib >= kind.mib
        and (node.cpu_milli is None or node.cpu_milli >= kind.cpu)
        and (node.memory_mib is None or node.memory_mib >= kind.memory)
    )
