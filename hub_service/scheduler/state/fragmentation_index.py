"""Free capacity allocated so that the least of it becomes fragmented (P6).

For each kind of request, nodes are ranked by the fragmentation that it would add; only changed
nodes are ranked again. Ties follow P2. Used for the policy `packing: "frag"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import Node, Packing
from runai.hub_service.scheduler.state.fragmentation import Free, Mix
from runai.hub_service.scheduler.state.free_capacity import Room
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape

Rank = tuple[int, ...]
"""Added fragmentation, then P2: free part of a shared device, or idle and free devices."""

_SLACK = 4
"""Maximum number of stale entries of a heap per valid entry."""


class Ranking:
    """Nodes where one kind fits, by rank; `seen` counts the changes already applied."""

    __slots__ = ("heap", "ranks", "seen")

    def __init__(self) -> None:
        self.heap: list[tuple[Rank, int]] = []
        self.ranks: dict[int, Rank] = {}
        self.seen: int

    def store(self, node: int, rank: Rank | None) -> None:
        """Store a node's rank; None means the kind does not fit."""
        if rank is None:
            self.ranks.pop(node, None)
        elif self.ranks.get(node) != rank:
            self.ranks[node] = rank
            heappush(self.heap, (rank, node))

    def first(self) -> int | None:
        """Return the node of the smallest rank; on ties the first by name."""
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


class FragRoom(Room):
    """Free capacity of the nodes, allocated by least added fragmentation."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Start with everything free and an empty mix, which gives the order of P2."""
        super().__init__(nodes, spread=False)
        self._mix = Mix({}, self.device_mib)
        self._orders: dict[RequestShape, Ranking] = {}
        self._changed: list[int] = []
        self._free: list[Free | None] = [None] * len(nodes)

    def expect(self, workers: Mapping[RequestShape, int]) -> None:
        """Use this mix of requests from now on."""
        if workers != self._mix.counts:
            self._mix = Mix(workers, self.device_mib)
            self._forget()

    def _forget(self) -> None:
        self._orders.clear()
        self._changed.clear()

    def book(self, booking: Booking, sign: int = 1) -> None:
        """Reserve a worker's capacity, or release it with sign -1."""
        super().book(booking, sign)
        if booking.node >= 0:
            self._free[booking.node] = None
            if self._orders:
                self._changed.append(booking.node)

    # ---- placement

    def find(self, kind: RequestShape) -> tuple[int, tuple[int, ...]] | None:
        """Return the place for one worker that adds least fragmentation, or None (P6)."""
        if len(self._changed) > _SLACK * (len(self.nodes) + 256):
            self._forget()
        order = self._orders.get(kind)
        news: Iterable[int]
        if order is None:
            order = self._orders[kind] = Ranking()
            news = kind.nodes
        else:
            news = kind.nodes.intersection(self._changed[order.seen :])
        order.seen = len(self._changed)
        for node in news:
            order.store(node, self._rank(node, kind))
        found = order.first()
        if found is None:
            return None
        devices = self.devices_on(found, kind)
        assert devices is not None, "ranked nodes have room"
        return found, devices

    def devices_on(
        self, node: int, kind: RequestShape, *, spread: bool | None = None
    ) -> tuple[int, ...] | None:
        """Choose devices of a node for a kind; None if it does not fit (P6)."""
        if kind.devices != 1 or kind.is_whole or spread is not None:
            return super().devices_on(node, kind, spread=spread)
        self.looks += 1
        return self._best_device(node, kind)

    def in_order(self, kinds: Sequence[RequestShape], nodes: Iterable[int]) -> Iterable[int]:
        """Sort nodes that each fit all of `kinds` by added fragmentation (P4, P6)."""
        return sorted(nodes, key=lambda node: (self._growth_of_all(node, kinds), node))

    def preference(self, node: int, kind: RequestShape) -> tuple[int, ...]:
        """Return the rank of a node with room for a kind; the smallest is best."""
        return (self._growth(node, kind), *self.fullness(node))

    # ---- ranking

    def _left_on(self, node: int) -> Free:
        free = self._free[node]
        if free is None:
            parts = sorted(self._part(node, device) for device in range(len(self.milli[node])))
            free = self._free[node] = Free(tuple(parts), self.cpu[node], self.memory[node])
        return free

    def _part(self, node: int, device: int) -> int:
        return max(0, self.largest_fraction(node, device))

    def _rank(self, node: int, kind: RequestShape) -> Rank | None:
        devices = self.devices_on(node, kind)
        if devices is None:
            return None
        growth = self._growth(node, kind)
        if kind.devices == 1 and not kind.is_whole:
            (device,) = devices
            rest = self._part(node, device)
            if rest < WHOLE_GPU:
                return growth, rest
            return growth, rest, self.idle[node], self.free_on(node)
        return growth, self.idle[node], self.free_on(node)

    def _growth(self, node: int, kind: RequestShape) -> int:
        return self._growth_of_all(node, (kind,))

    def _growth_of_all(self, node: int, kinds: Sequence[RequestShape]) -> int:
        """Return the fragmentation that several workers add to one node, placed in order."""
        profile = self._mix.profiles[node]
        before = free = self._left_on(node)
        for kind in kinds:
            free = profile.after(free, kind)
        return profile.fragmentation(free) - profile.fragmentation(before)

    def _best_device(self, node: int, kind: RequestShape) -> tuple[int, ...] | None:
        if not self.has_base(node, kind):
            return None
        firsts: dict[int, int] = {}
        for device in range(len(self.milli[node])):
            if self.fits_device(node, device, kind):
                firsts.setdefault(self._part(node, device), device)
        if not firsts:
            return None
        profile = self._mix.profiles[node]
        return (firsts[profile.best_part(self._left_on(node), firsts, kind)],)


def room_for(packing: Packing, nodes: Sequence[Node]) -> Room:
    """Build the free-capacity index for the policy's `packing` (P2, P6)."""
    return FragRoom(nodes) if packing == "frag" else Room(nodes, spread=packing == "spread")
