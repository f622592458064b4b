"""Free capacity of nodes and devices, indexed by fullness to find a place quickly.

Covers devices (milli-GPU and MiB), CPU and memory in one view of the cluster, and the node orders
of `binpack` and `spread` (P1 to P3). The planning state has two views: capacity free now, and
capacity free once stopping workers have exited.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, memory_of_fraction
from runai.hub_service.scheduler.model.snapshot import Node
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape

ENOUGH = 1 << 62
"""CPU or memory of a node that does not report it."""


class FreeCapacity:
    """One view of the free capacity. Nodes are indices in the order of their names."""

    def __init__(self, nodes: Sequence[Node], *, spread: bool) -> None:
        """Start with everything free."""
        self.nodes = nodes
        self.spread = spread
        self.device_mib = [int(node.device_memory_mib) for node in nodes]
        self.milli = [[int(WHOLE_GPU)] * node.devices for node in nodes]
        self.mib = [[int(node.device_memory_mib)] * node.devices for node in nodes]
        self.cpu = [ENOUGH if node.cpu_milli is None else node.cpu_milli for node in nodes]
        self.memory = [ENOUGH if node.memory_mib is None else node.memory_mib for node in nodes]
        self.idle = [node.devices for node in nodes]
        for index, node in enumerate(nodes):
            for device in node.broken_devices:
                # Permanently taken; a worker on it makes the amount negative, as on any full
                # device.
                self.milli[index][device] = self.mib[index][device] = 0
                self.idle[index] -= 1
        self._open = [node.schedulable for node in nodes]
        self.idle_total = sum(i * is_open for i, is_open in zip(self.idle, self._open, strict=True))
        self.free_milli = self.idle_total * WHOLE_GPU
        self._by_idle: list[list[int]] = [[] for _ in range(max(self.idle, default=0) + 1)]
        for index, idle in enumerate(self.idle):
            self._by_idle[idle].append(index)
        self._shared: list[tuple[int, int, int]] = []  # largest fraction that fits, node, device
        self.examined = 0
        """Number of candidates examined, to measure how the cost grows."""

    # ---- bookkeeping

    def book(self, booking: Booking, sign: int = 1) -> None:
        """Reserve a worker's capacity, or release it with sign -1."""
        node, devices, milli, mib, cpu, memory, _, _ = booking
        if node < 0:
            return
        if cpu or memory:
            self.cpu[node] -= sign * cpu
            self.memory[node] -= sign * memory
        if not devices:
            return
        millis, mibs, full = self.milli[node], self.mib[node], self.device_mib[node]
        idle = before = self.idle[node]
        free_milli = 0
        for device in devices:
            old_milli, old_mib = millis[device], mibs[device]
            new_milli, new_mib = old_milli - sign * milli, old_mib - sign * mib
            was_idle = old_milli == WHOLE_GPU and old_mib == full
            is_idle = new_milli == WHOLE_GPU and new_mib == full
            # Idle, full and overcommitted devices cannot be shared, so they are not in the index.
            if old_milli > 0 and not was_idle:
                self._unshare(node, device)
            millis[device], mibs[device] = new_milli, new_mib
            if new_milli > 0 and not is_idle:
                self._share(node, device)
            idle += is_idle - was_idle
            free_milli += max(0, new_milli) - max(0, old_milli)
        if self._open[node]:
            self.free_milli += free_milli
        if idle != before:
            self.idle[node] = idle
            self.idle_total += (idle - before) * self._open[node]
            bucket = self._by_idle[before]
            del bucket[bisect_left(bucket, node)]
            insort(self._by_idle[idle], node)

    def largest_fraction(self, node: int, device: int) -> int:
        """Return the largest fraction that fits on a device, in milli-GPU; below 1 is none."""
        milli, full = self.milli[node][device], self.device_mib[node]
        if not full:
            return milli
        # A fraction f fits if its memory, rounded down, does: floor(f * full / 1000) <= free.
        return min(milli, -(-WHOLE_GPU * (self.mib[node][device] + 1) // full) - 1)

    def _share(self, node: int, device: int) -> None:
        """Add a device to the index of shared devices, if a fraction fits."""
        fraction = self.largest_fraction(node, device)
        if fraction > 0:
            insort(self._shared, (fraction, node, device))

    def _unshare(self, node: int, device: int) -> None:
        fraction = self.largest_fraction(node, device)
        if fraction > 0:
            del self._shared[bisect_left(self._shared, (fraction, node, device))]

    # ---- placement

    def has_base(self, node: int, shape: RequestShape) -> bool:
        """Return True if a node has the CPU and memory."""
        return self.cpu[node] >= shape.cpu and self.memory[node] >= shape.memory

    def fits_device(self, node: int, device: int, shape: RequestShape) -> bool:
        """Return True if a device has enough free capacity for a request (P3).

        The request's amount per device counts: its MiB, or its milli-GPU and their memory.
        """
        full = self.device_mib[node]
        if shape.mib:
            return self.mib[node][device] >= shape.mib
        return self.milli[node][device] >= shape.milli and self.mib[node][
            device
        ] >= memory_of_fraction(shape.milli, full)

    def fits_returned(self, node: int, device: int, shape: RequestShape) -> bool:
        """Return True if a broken device that may return would then fit a request."""
        full = self.device_mib[node]
        return (
            device in self.nodes[node].returning_devices
            and self.milli[node][device] + WHOLE_GPU >= shape.milli
            and self.mib[node][device] + full >= shape.mib_on(full)
        )

    def devices_on(
        self, node: int, shape: RequestShape, *, spread: bool | None = None
    ) -> tuple[int, ...] | None:
        """Choose devices of a node for a shape; None if it does not fit (P2).

        `spread=True` prefers the emptiest devices, False the fullest; None follows the policy.
        """
        self.examined += 1
        if not self.has_base(node, shape):
            return None
        if not shape.devices:
            return ()
        millis = self.milli[node]
        if shape.is_whole:
            if self.idle[node] < shape.devices:
                return None
            full, mibs = self.device_mib[node], self.mib[node]
            idle_devices: list[int] = []
            device = -1
            while len(idle_devices) < shape.devices:  # the node has enough idle devices
                device = millis.index(WHOLE_GPU, device + 1)
                if mibs[device] == full:
                    idle_devices.append(device)
            return tuple(idle_devices)
        fitting = [d for d in range(len(millis)) if self.fits_device(node, d, shape)]
        if len(fitting) < shape.devices:
            return None
        emptiest_first = self.spread if spread is None else spread
        fitting.sort(key=lambda device: self.largest_fraction(node, device), reverse=emptiest_first)
        return tuple(sorted(fitting[: shape.devices]))

    def slots(self, node: int, shape: RequestShape) -> int:
        """Return how many workers of a shape fit on a node together."""
        self.examined += 1
        slots = self.device_slots(node, shape) if shape.devices else ENOUGH
        if shape.cpu:
            slots = min(slots, self.cpu[node] // shape.cpu)
        if shape.memory:
            slots = min(slots, self.memory[node] // shape.memory)
        return max(0, slots)

    def slots_by_node(
        self, shape: RequestShape, nodes: frozenset[int] | None = None
    ) -> dict[int, int]:
        """Return the number of workers that fit, by node with room (of `nodes`, if given)."""
        if nodes is None:
            nodes = shape.nodes
        # Whole devices need a node with as many idle ones.
        candidates = self.nodes_by_fullness(shape.devices) if shape.is_whole else nodes
        slots_by_node = {}
        for node in candidates:
            if node in nodes:
                slots = self.slots(node, shape)
                if slots:
                    slots_by_node[node] = slots
        return slots_by_node

    def device_slots(self, node: int, shape: RequestShape) -> int:
        """Return how many workers of a shape fit on a node's devices."""
        if shape.is_whole:
            return self.idle[node] // shape.devices
        parts = [self._parts_on(node, device, shape) for device in range(len(self.milli[node]))]
        slots = sum(parts) // shape.devices
        # A worker needs distinct devices, so each device serves each worker at most once.
        while sum(min(part, slots) for part in parts) < slots * shape.devices:
            slots -= 1
        return slots

    def _parts_on(self, node: int, device: int, shape: RequestShape) -> int:
        """Return how many workers of a shape could each use a part of a device."""
        mib = self.mib[node][device]
        if shape.mib:
            return max(0, mib // shape.mib)
        parts = self.milli[node][device] // shape.milli
        mib_per_part = memory_of_fraction(shape.milli, self.device_mib[node])
        return max(0, min(parts, mib // mib_per_part) if mib_per_part else parts)

    def fullness(self, node: int) -> tuple[int, int, int]:
        """Return a node's rank among nodes with room, in the order of P2. Ties by name."""
        idle, free = self.idle[node], self.free_on(node)
        return (-idle, -free, node) if self.spread else (idle, free, node)

    def unused_broken_devices(self, node: int) -> int:
        """Return the number of a node's broken devices without a worker: they are no capacity."""
        milli, mib = self.milli[node], self.mib[node]
        return sum(milli[d] >= 0 and mib[d] >= 0 for d in self.nodes[node].broken_devices)

    def free_on(self, node: int) -> int:
        """Return the free milli-GPU on a node's devices, summed."""
        return sum([milli for milli in self.milli[node] if milli > 0])

    def free_parts_on(self, node: int) -> int:
        """Return the free milli-GPU on a node, each device with its free memory if that is less."""
        device_mib = self.device_mib[node]
        if not device_mib:
            return self.free_on(node)
        parts = zip(self.milli[node], self.mib[node], strict=True)
        return sum([max(0, min(milli, WHOLE_GPU * mib // device_mib)) for milli, mib in parts])

    def preference(self, node: int, shape: RequestShape) -> tuple[int, ...]:  # noqa: ARG002  overridden
        """Return the rank of a node with room for a shape; the smallest is best."""
        return self.fullness(node)

    def in_order(self, shapes: Sequence[RequestShape], nodes: Iterable[int]) -> Iterable[int]:  # noqa: ARG002
        """Sort nodes that each fit all of `shapes`; callers pass them fullest first."""
        return nodes

    def nodes_by_fullness(self, min_idle: int) -> Iterator[int]:
        """Yield the nodes with at least `min_idle` idle devices, in the order of P2."""
        buckets = range(min_idle, len(self._by_idle))
        for idle in reversed(buckets) if self.spread else buckets:
            yield from self._by_idle[idle]

    def find(self, shape: RequestShape) -> tuple[int, tuple[int, ...]] | None:
        """Return the place for one worker, or None (P2).

        Binpack puts a fraction on the fullest shared device that has room, before it opens a new
        one. Whole devices, and a new device to share, come from the fullest node.
        """
        if shape.devices == 1 and not shape.is_whole and not self.spread:
            shared = self._find_shared(shape)
            if shared is not None:
                return shared
            return self._first_that_fits(shape, 1)
        return self._first_that_fits(shape, shape.devices if shape.is_whole else 0)

    def _find_shared(self, shape: RequestShape) -> tuple[int, tuple[int, ...]] | None:
        """Return the fullest shared device that fits a fraction, with its node."""
        start = bisect_left(self._shared, shape.milli, key=itemgetter(0))
        for index in range(start, len(self._shared)):
            _, node, device = self._shared[index]
            self.examined += 1
            if (
                node in shape.nodes
                and self.fits_device(node, device, shape)
                and self.has_base(node, shape)
            ):
                return node, (device,)
        return None

    def _first_that_fits(
        self, shape: RequestShape, min_idle: int
    ) -> tuple[int, tuple[int, ...]] | None:
        if not shape.nodes:
            return None
        for node in self.nodes_by_fullness(min_idle):
            if node in shape.nodes:
                devices = self.devices_on(node, shape)
                if devices is not None:
                    return node, devices
        return None
