"""A room's free capacity equals a fresh count after any bookings and releases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import cluster
from runai.hub_service.scheduler import Mib, MilliGpu, Node, Worker
from runai.hub_service.scheduler.state.free_capacity import ENOUGH, FreeCapacity
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape, RequestShapes

MEMORY = 1000
WORKERS = [
    Worker(name="cpu", cpu_milli=3000),
    Worker(name="one", gpus=MilliGpu(1000)),
    Worker(name="two", gpus=MilliGpu(2000), cpu_milli=1000),
    Worker(name="half", gpus=MilliGpu(500)),
    Worker(name="third", gpus=MilliGpu(333), memory_mib=Mib(300)),
    Worker(name="most", gpus=MilliGpu(700)),
    Worker(name="memory", gpu_memory_mib=Mib(400)),
    Worker(name="all memory", gpu_memory_mib=Mib(MEMORY)),
    Worker(name="two halves", gpus=MilliGpu(500), devices_wanted=2),
    Worker(name="two memories", gpu_memory_mib=Mib(300), devices_wanted=2),
]


def nodes_of(sizes: list[int], *, closed: int = -1) -> list[Node]:
    return [
        Node(
            name=f"n{i}",
            devices=size,
            device_memory_mib=Mib(MEMORY),
            cpu_milli=8000,
            memory_mib=Mib(MEMORY) if i else None,
            schedulable=i != closed,
        )
        for i, size in enumerate(sizes)
    ]


class Booked:
    """A room and the bookings that are in it."""

    def __init__(self, nodes: list[Node], *, spread: bool) -> None:
        self.nodes = nodes
        self.room = FreeCapacity(nodes, spread=spread)
        self.kinds = RequestShapes(nodes)
        self.all = [self.kinds.shape_of(worker, ()) for worker in WORKERS]
        self.bookings: list[Booking] = []

    def take(self, booking: Booking) -> None:
        self.room.book(booking)
        self.bookings.append(booking)

    def give_back(self, index: int) -> None:
        self.room.book(self.bookings.pop(index), -1)

    # ---- fresh counts

    def milli(self, node: int, device: int) -> int:
        return 1000 - sum(b.milli for b in self.bookings if b.node == node and device in b.devices)

    def mib(self, node: int, device: int) -> int:
        return MEMORY - sum(b.mib for b in self.bookings if b.node == node and device in b.devices)

    def cpu(self, node: int) -> int:
        return 8000 - sum(b.cpu for b in self.bookings if b.node == node)

    def memory(self, node: int) -> int:
        has = self.nodes[node].memory_mib
        return (ENOUGH if has is None else has) - sum(
            b.memory for b in self.bookings if b.node == node
        )

    def devices(self, node: int) -> range:
        return range(self.nodes[node].devices)

    def idle(self, node: int) -> list[int]:
        whole = [(1000, MEMORY)]
        return [d for d in self.devices(node) if (self.milli(node, d), self.mib(node, d)) in whole]

    def fits(self, node: int, device: int, kind: RequestShape) -> bool:
        mib = kind.mib or kind.milli * MEMORY // 1000
        return self.milli(node, device) >= kind.milli and self.mib(node, device) >= mib

    def parts(self, node: int, device: int, kind: RequestShape) -> int:
        """Count the requests that fit on a device."""
        mib = kind.mib or kind.milli * MEMORY // 1000
        by_memory = self.mib(node, device) // mib
        return min(by_memory, self.milli(node, device) // kind.milli) if kind.milli else by_memory

    def has_base(self, node: int, kind: RequestShape) -> bool:
        return self.cpu(node) >= kind.cpu and self.memory(node) >= kind.memory

    def largest(self, node: int, device: int) -> int:
        milli = self.milli(node, device)
        fractions = range(min(1000, milli), 0, -1)
        return next((f for f in fractions if f * MEMORY // 1000 <= self.mib(node, device)), 0)

    def is_room(self, node: int, kind: RequestShape) -> bool:
        usable = self.idle(node) if kind.is_whole else self.devices(node)
        fitting = [d for d in usable if self.fits(node, d, kind)]
        return len(fitting) >= kind.devices and self.has_base(node, kind)

    def slots(self, node: int, kind: RequestShape) -> int:
        """Count the requests that fit, each booked where most of its kind still fit."""
        copy = Booked(self.nodes, spread=True)
        for booking in self.bookings:
            copy.take(booking)
        for count in itertools.count():
            if count > 40:
                return ENOUGH
            usable = copy.idle(node) if kind.is_whole else copy.devices(node)
            fitting = [d for d in usable if copy.fits(node, d, kind)]
            if len(fitting) < kind.devices or not copy.has_base(node, kind):
                return count
            if kind.devices:
                fitting.sort(key=lambda d: -copy.parts(node, d, kind))
            copy.take(copy.kinds.book(kind, node, tuple(fitting[: kind.devices])))
        raise AssertionError


@st.composite
def booked(draw: st.DrawFn) -> Booked:
    """Draw a room after some bookings and releases."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    closed = draw(st.integers(-4, len(sizes) - 1))
    world = Booked(nodes_of(sizes, closed=closed), spread=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 12))):
        if world.bookings and draw(st.integers(0, 3)) == 0:
            world.give_back(draw(st.integers(0, len(world.bookings) - 1)))
            continue
        kind = draw(st.sampled_from(world.all))
        places = list(_places(world, kind))
        if places:
            node, devices = draw(st.sampled_from(places))
            world.take(world.kinds.book(kind, node, devices))
    return world


def _places(world: Booked, kind: RequestShape) -> Iterator[tuple[int, tuple[int, ...]]]:
    for node in range(len(world.nodes)):
        usable = world.idle(node) if kind.is_whole else world.devices(node)
        fitting = [d for d in usable if world.fits(node, d, kind)]
        if world.has_base(node, kind):
            for devices in itertools.combinations(fitting, kind.devices):
                yield node, devices


@given(booked())
def test_free_capacity_equals_a_full_recount(world: Booked) -> None:
    room = world.room
    nodes = range(len(world.nodes))
    is_open = [node.schedulable for node in world.nodes]

    assert room.idle == [len(world.idle(n)) for n in nodes]
    assert room.idle_total == sum(len(world.idle(n)) for n in nodes if is_open[n])
    assert room.free_milli == sum(
        world.milli(n, d) for n in nodes if is_open[n] for d in world.devices(n)
    )
    assert (room.cpu, room.memory) == (
        [world.cpu(n) for n in nodes],
        [world.memory(n) for n in nodes],
    )
    for node in nodes:
        assert room.free_on(node) == sum(world.milli(node, d) for d in world.devices(node))
        for device in world.devices(node):
            assert room.largest_fraction(node, device) == world.largest(node, device)


@given(booked())
def test_a_kind_finds_the_place_that_packing_says(world: Booked) -> None:
    room, spread = world.room, world.room.spread
    for kind in world.all:
        fitting = [n for n in sorted(kind.nodes) if world.is_room(n, kind)]
        found = room.find(kind)

        assert (found is None) == (not fitting)
        if found is None:
            continue
        node, devices = found
        assert node in fitting
        assert len(set(devices)) == kind.devices
        assert all(world.fits(node, d, kind) for d in devices)
        shared = [
            (world.largest(n, d), n, d)
            for n in fitting
            for d in world.devices(n)
            if world.fits(n, d, kind) and d not in world.idle(n)
        ]
        if kind.devices == 1 and not kind.is_whole and not spread and shared:
            # P2: the fullest shared device anywhere, before a new one is opened.
            assert found == (min(shared)[1], (min(shared)[2],))
        elif kind.devices:
            idle = [len(world.idle(n)) for n in fitting]

            assert len(world.idle(node)) == (max(idle) if spread else min(idle))
        if kind.is_whole:
            assert devices == tuple(world.idle(node)[: kind.devices])
        elif kind.devices:
            sign = -1 if spread else 1
            order = [d for d in world.devices(node) if world.fits(node, d, kind)]
            order.sort(key=lambda d: (sign * world.largest(node, d), d))

            assert devices == tuple(sorted(order[: kind.devices]))


@given(booked())
def test_slots_are_as_many_as_fit_one_after_another(world: Booked) -> None:
    room = world.room
    for kind in world.all:
        if not (kind.devices or kind.cpu or kind.memory):
            continue
        expected = {n: world.slots(n, kind) for n in sorted(kind.nodes)}

        assert {n: room.slots(n, kind) for n in expected} == expected
        assert room.slots_by_node(kind) == {n: slots for n, slots in expected.items() if slots}


@pytest.mark.parametrize("spread", [False, True])
def test_nodes_come_fullest_first_or_emptiest_first(*, spread: bool) -> None:
    world = Booked(list(cluster("4x2", memory_mib=MEMORY)), spread=spread)
    one = world.all[1]
    for node, count in enumerate([1, 0, 2, 1]):
        for device in range(count):
            world.take(world.kinds.book(one, node, (device,)))

    order = [1, 0, 3, 2] if spread else [2, 0, 3, 1]
    assert sorted(range(4), key=world.room.fullness) == order
    assert list(world.room.nodes_by_fullness(0)) == order
    assert list(world.room.nodes_by_fullness(1)) == [n for n in order if n != 2]


def test_overbooked_device_becomes_free_only_after_the_excess_is_released() -> None:
    world = Booked(nodes_of([2]), spread=False)
    one, half = world.all[1], world.all[3]
    for kind in (one, one, half):
        world.take(world.kinds.book(kind, 0, (0,)))

    assert (world.room.idle, world.room.free_milli) == ([1], 1000)
    assert world.room.slots(0, half) == 2
    for _ in range(2):
        world.give_back(0)
    assert (world.room.idle, world.room.free_milli) == ([1], 1500)
    world.give_back(0)
    assert (world.room.idle, world.room.free_milli, world.room.idle_total) == ([2], 2000, 2)


def test_booking_on_an_unknown_node_uses_no_capacity() -> None:
    world = Booked(nodes_of([1]), spread=False)

    world.take(world.kinds.book(world.all[1], -1, (0,)))

    assert (world.room.idle, world.room.free_milli) == ([1], 1000)
