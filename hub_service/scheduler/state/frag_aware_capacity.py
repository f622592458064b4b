"""Free capacity allocated so that the least of it becomes fragmented (P6).

For each request shape, nodes are ranked by the fragmentation that it would add; only changed
nodes are ranked again. Ties follow P2. Used for the policy `packing: "frag"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import Node, Packing
from runai.hub_service.scheduler.state.fragmentation import NodeFreeCapacity, RequestMix
from runai.hub_service.scheduler.state.free_capacity import FreeCapacity
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape

Rank = tuple[int, ...]
"""Added fragmentation, then P2: free part of a shared device, or idle and free devices."""

_SLACK = 4
"""Maximum number of stale entries of a heap per valid entry."""


class NodeRanking:
    """Nodes where one shape fits, by rank; `applied_changes` counts the changes already applied."""

    __slots__ = ("applied_changes", "heap", "ranks")

    def __init__(self) -> None:
        self.heap: list[tuple[Rank, int]] = []
        self.ranks: dict[int, Rank] = {}
        self.applied_changes: int

    def store(self, node: int, rank: Rank | None) -> None:
        """Store a node's rank; None means the shape does not fit."""
        if rank is None:
            self.ranks.pop(node, None)
        elif self.ranks.get(node) != rank:
            self.ranks[node] = rank
            heappush(self.heap, (rank, node))

    def first(self) -> int | None:
        """Return the node of the smallest rank, on ties the first by name; drop stale entries."""
        heap, ranks = self.heap, self.ranks
        if len(heap) > _SLACK * (len(ranks) + 16):
            heap[:] = [(rank, node) for node, rank in ranks.items()]
            heapify(heap)
        while heap:
            rank, node = heap[0]
            if ranks.get(node) == rank:
                return node
            heappop(heap)
        return None


class FragAwareCapacity(FreeCapacity):
    """Free capacity of the nodes, allocated by least added fragmentation."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Start with everything free and an empty mix, which gives the order of P2."""
        super().__init__(nodes, spread=False)
        self._mix = RequestMix({}, self.device_mib)
        self._rankings: dict[RequestShape, NodeRanking] = {}
        self._changed: list[int] = []
        self._node_capacities: list[NodeFreeCapacity | None] = [None] * len(nodes)

    def expect(self, workers: Mapping[RequestShape, int]) -> None:
        """Use this mix of requests from now on."""
        if workers != self._mix.counts:
            self._mix = RequestMix(workers, self.device_mib)
            self._drop_rankings()

    def _drop_rankings(self) -> None:
        self._rankings.clear()
        self._changed.clear()

    def book(self, booking: Booking, sign: int = 1) -> None:
        """Reserve a worker's capacity, or release it with sign -1."""
        super().book(booking, sign)
        if booking.node >= 0:
            self._node_capacities[booking.node] = None
            if self._rankings:
                self._changed.append(booking.node)

    # ---- placement

    def find(self, shape: RequestShape) -> tuple[int, tuple[int, ...]] | None:
        """Return the place for one worker that adds least fragmentation, or None (P6)."""
        if len(self._changed) > _SLACK * (len(self.nodes) + 256):
            self._drop_rankings()
        ranking = self._rankings.get(shape)
        stale_nodes: Iterable[int]
        if ranking is None:
            ranking = self._rankings[shape] = NodeRanking()
            stale_nodes = shape.nodes
        else:
            stale_nodes = shape.nodes.intersection(self._changed[ranking.applied_changes :])
        ranking.applied_changes = len(self._changed)
        for stale_node in stale_nodes:
            ranking.store(stale_node, self._rank(stale_node, shape))
        node = ranking.first()
        if node is None:
            return None
        devices = self.devices_on(node, shape)
        assert devices is not None, "ranked nodes have room"
        return node, devices

    def devices_on(
        self, node: int, shape: RequestShape, *, spread: bool | None = None
    ) -> tuple[int, ...] | None:
        """Choose devices of a node for a shape; None if it does not fit (P6)."""
        if shape.devices != 1 or shape.is_whole or spread is not None:
            return super().devices_on(node, shape, spread=spread)
        self.examined += 1
        return self._best_device(node, shape)

    def in_order(self, shapes: Sequence[RequestShape], nodes: Iterable[int]) -> Iterable[int]:
        """Sort nodes that each fit all of `shapes` by added fragmentation (P4, P6)."""
        return sorted(nodes, key=lambda node: (self._added_by_all(node, shapes), node))

    def preference(self, node: int, shape: RequestShape) -> tuple[int, ...]:
        """Return the rank of a node with room for a shape; the smallest is best."""
        return (self._added_fragmentation(node, shape), *self.fullness(node))

    # ---- ranking

    def _node_capacity(self, node: int) -> NodeFreeCapacity:
        free = self._node_capacities[node]
        if free is None:
            parts = tuple(sorted(self._fraction(node, d) for d in range(len(self.milli[node]))))
            free = NodeFreeCapacity(parts, self.cpu[node], self.memory[node])
            self._node_capacities[node] = free
        return free

    def _fraction(self, node: int, device: int) -> int:
        """Return the largest fraction that fits on a device, in milli-GPU."""
        return max(0, self.largest_fraction(node, device))

    def _rank(self, node: int, shape: RequestShape) -> Rank | None:
        devices = self.devices_on(node, shape)
        if devices is None:
            return None
        growth = self._added_fragmentation(node, shape)
        if shape.devices == 1 and not shape.is_whole:
            (device,) = devices
            rest = self._fraction(node, device)
            if rest < WHOLE_GPU:
                return growth, rest
            return growth, rest, self.idle[node], self.free_on(node)
        return growth, self.idle[node], self.free_on(node)

    def _added_fragmentation(self, node: int, shape: RequestShape) -> int:
        return self._added_by_all(node, (shape,))

    def _added_by_all(self, node: int, shapes: Sequence[RequestShape]) -> int:
        """Return the fragmentation that several workers add to one node, placed in order."""
        profile = self._mix.profiles[node]
        before = free = self._node_capacity(node)
        for shape in shapes:
            free = profile.after(free, shape)
        return profile.fragmentation(free) - profile.fragmentation(before)

    def _best_device(self, node: int, shape: RequestShape) -> tuple[int, ...] | None:
        """Choose the device where a fraction adds least fragmentation; None if none has room."""
        if not self.has_base(node, shape):
            return None
        device_by_fraction: dict[int, int] = {}
        for device in range(len(self.milli[node])):
            if self.fits_device(node, device, shape):
                device_by_fraction.setdefault(self._fraction(node, device), device)
        if not device_by_fraction:
            return None
        profile = self._mix.profiles[node]
        free = self._node_capacity(node)
        return (device_by_fraction[profile.best_part(free, device_by_fraction, shape)],)


def capacity_for(packing: Packing, nodes: Sequence[Node]) -> FreeCapacity:
    """Build the free-capacity index for the policy's `packing` (P2, P6)."""
    if packing == "frag":
        return FragAwareCapacity(nodes)
    return FreeCapacity(nodes, spread=packing == "spread")
