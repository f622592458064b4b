"""The free capacity equals a fresh count after any bookings and releases."""

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

DEVICE_MIB = 1000
WORKERS = [
    Worker(name="cpu", cpu_milli=3000),
    Worker(name="one", gpus=MilliGpu(1000)),
    Worker(name="two", gpus=MilliGpu(2000), cpu_milli=1000),
    Worker(name="half", gpus=MilliGpu(500)),
    Worker(name="third", gpus=MilliGpu(333), memory_mib=Mib(300)),
    Worker(name="most", gpus=MilliGpu(700)),
    Worker(name="memory", gpu_memory_mib=Mib(400)),
    Worker(name="all memory", gpu_memory_mib=Mib(DEVICE_MIB)),
    Worker(name="two halves", gpus=MilliGpu(500), devices_wanted=2),
    Worker(name="two memories", gpu_memory_mib=Mib(300), devices_wanted=2),
]


def nodes_of(sizes: list[int], *, closed: int = -1) -> list[Node]:
    return [
        Node(
            name=f"n{i}",
            devices=size,
            device_memory_mib=Mib(DEVICE_MIB),
            cpu_milli=8000,
            memory_mib=Mib(DEVICE_MIB) if i else None,
            schedulable=i != closed,
        )
        for i, size in enumerate(sizes)
    ]


class CapacityModel:
    """A free capacity, and its bookings to count it anew."""

    def __init__(self, nodes: list[Node], *, spread: bool) -> None:
        self.nodes = nodes
        self.capacity = FreeCapacity(nodes, spread=spread)
        self.shapes = RequestShapes(nodes)
        self.all_shapes = [self.shapes.shape_of(worker, ()) for worker in WORKERS]
        self.bookings: list[Booking] = []

    def book(self, booking: Booking) -> None:
        self.capacity.book(booking)
        self.bookings.append(booking)

    def release(self, index: int) -> None:
        self.capacity.book(self.bookings.pop(index), -1)

    # ---- fresh counts

    def milli(self, node: int, device: int) -> int:
        return 1000 - sum(b.milli for b in self.bookings if b.node == node and device in b.devices)

    def mib(self, node: int, device: int) -> int:
        return DEVICE_MIB - sum(
            b.mib for b in self.bookings if b.node == node and device in b.devices
        )

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
        whole = [(1000, DEVICE_MIB)]
        return [d for d in self.devices(node) if (self.milli(node, d), self.mib(node, d)) in whole]

    def fits(self, node: int, device: int, shape: RequestShape) -> bool:
        mib = shape.mib or shape.milli * DEVICE_MIB // 1000
        return self.milli(node, device) >= shape.milli and self.mib(node, device) >= mib

    def parts(self, node: int, device: int, shape: RequestShape) -> int:
        """Count the requests that fit on a device."""
        mib = shape.mib or shape.milli * DEVICE_MIB // 1000
        by_memory = self.mib(node, device) // mib
        return min(by_memory, self.milli(node, device) // shape.milli) if shape.milli else by_memory

    def has_base(self, node: int, shape: RequestShape) -> bool:
        return self.cpu(node) >= shape.cpu and self.memory(node) >= shape.memory

    def largest(self, node: int, device: int) -> int:
        milli = self.milli(node, device)
        fractions = range(min(1000, milli), 0, -1)
        return next((f for f in fractions if f * DEVICE_MIB // 1000 <= self.mib(node, device)), 0)

    def fits_node(self, node: int, shape: RequestShape) -> bool:
        usable = self.idle(node) if shape.is_whole else self.devices(node)
        fitting = [d for d in usable if self.fits(node, d, shape)]
        return len(fitting) >= shape.devices and self.has_base(node, shape)

    def slots(self, node: int, shape: RequestShape) -> int:
        """Count the requests that fit, each booked where most of its kind still fit."""
        copy = CapacityModel(self.nodes, spread=True)
        for booking in self.bookings:
            copy.book(booking)
        for count in itertools.count():
            if count > 40:
                return ENOUGH
            usable = copy.idle(node) if shape.is_whole else copy.devices(node)
            fitting = [d for d in usable if copy.fits(node, d, shape)]
            if len(fitting) < shape.devices or not copy.has_base(node, shape):
                return count
            if shape.devices:
                fitting.sort(key=lambda d: -copy.parts(node, d, shape))
            copy.book(copy.shapes.book(shape, node, tuple(fitting[: shape.devices])))
        raise AssertionError


@st.composite
def capacity_models(draw: st.DrawFn) -> CapacityModel:
    """Draw a free capacity after some bookings and releases."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    closed = draw(st.integers(-4, len(sizes) - 1))
    model = CapacityModel(nodes_of(sizes, closed=closed), spread=draw(st.booleans()))
    for _ in range(draw(st.integers(0, 12))):
        if model.bookings and draw(st.integers(0, 3)) == 0:
            model.release(draw(st.integers(0, len(model.bookings) - 1)))
            continue
        shape = draw(st.sampled_from(model.all_shapes))
        places = list(_placements(model, shape))
        if places:
            node, devices = draw(st.sampled_from(places))
            model.book(model.shapes.book(shape, node, devices))
    return model


def _placements(model: CapacityModel, shape: RequestShape) -> Iterator[tuple[int, tuple[int, ...]]]:
    for node in range(len(model.nodes)):
        usable = model.idle(node) if shape.is_whole else model.devices(node)
        fitting = [d for d in usable if model.fits(node, d, shape)]
        if model.has_base(node, shape):
            for devices in itertools.combinations(fitting, shape.devices):
                yield node, devices


@given(capacity_models())
def test_free_capacity_equals_a_full_recount(model: CapacityModel) -> None:
    capacity = model.capacity
    nodes = range(len(model.nodes))
    is_open = [node.schedulable for node in model.nodes]

    assert capacity.idle == [len(model.idle(n)) for n in nodes]
    assert capacity.idle_total == sum(len(model.idle(n)) for n in nodes if is_open[n])
    assert capacity.free_milli == sum(
        model.milli(n, d) for n in nodes if is_open[n] for d in model.devices(n)
    )
    assert (capacity.cpu, capacity.memory) == (
        [model.cpu(n) for n in nodes],
        [model.memory(n) for n in nodes],
    )
    for node in nodes:
        assert capacity.free_on(node) == sum(model.milli(node, d) for d in model.devices(node))
        for device in model.devices(node):
            assert capacity.largest_fraction(node, device) == model.largest(node, device)


@given(capacity_models())
def test_free_capacity_gives_a_request_the_devices_that_the_packing_policy_prescribes(
    model: CapacityModel,
) -> None:
    capacity, spread = model.capacity, model.capacity.spread
    for shape in model.all_shapes:
        fitting = [n for n in sorted(shape.nodes) if model.fits_node(n, shape)]
        placement = capacity.find(shape)

        assert (placement is None) == (not fitting)
        if placement is None:
            continue
        node, devices = placement
        assert node in fitting
        assert len(set(devices)) == shape.devices
        assert all(model.fits(node, d, shape) for d in devices)
        shared = [
            (model.largest(n, d), n, d)
            for n in fitting
            for d in model.devices(n)
            if model.fits(n, d, shape) and d not in model.idle(n)
        ]
        if shape.devices == 1 and not shape.is_whole and not spread and shared:
            # P2: the fullest shared device anywhere, before a new one is opened.
            assert placement == (min(shared)[1], (min(shared)[2],))
        elif shape.devices:
            idle = [len(model.idle(n)) for n in fitting]

            assert len(model.idle(node)) == (max(idle) if spread else min(idle))
        if shape.is_whole:
            assert devices == tuple(model.idle(node)[: shape.devices])
        elif shape.devices:
            sign = -1 if spread else 1
            order = [d for d in model.devices(node) if model.fits(node, d, shape)]
            order.sort(key=lambda d: (sign * model.largest(node, d), d))

            assert devices == tuple(sorted(order[: shape.devices]))


@given(capacity_models())
def test_free_slots_of_a_node_are_the_requests_that_fit_in_sequence(model: CapacityModel) -> None:
    capacity = model.capacity
    for shape in model.all_shapes:
        if not (shape.devices or shape.cpu or shape.memory):
            continue
        expected = {n: model.slots(n, shape) for n in sorted(shape.nodes)}

        assert {n: capacity.slots(n, shape) for n in expected} == expected
        assert capacity.slots_by_node(shape) == {n: slots for n, slots in expected.items() if slots}


@pytest.mark.parametrize("spread", [False, True])
def test_nodes_are_ordered_fullest_first_or_with_spread_policy_emptiest_first(
    *, spread: bool
) -> None:
    model = CapacityModel(list(cluster("4x2", memory_mib=DEVICE_MIB)), spread=spread)
    whole_gpu = model.all_shapes[1]
    for node, count in enumerate([1, 0, 2, 1]):  # GPUs in use on each of four nodes
        for device in range(count):
            model.book(model.shapes.book(whole_gpu, node, (device,)))

    order = [1, 0, 3, 2] if spread else [2, 0, 3, 1]
    assert sorted(range(4), key=model.capacity.fullness) == order
    assert list(model.capacity.nodes_by_fullness(0)) == order
    assert list(model.capacity.nodes_by_fullness(1)) == [n for n in order if n != 2]


def test_overbooked_device_becomes_free_only_after_the_excess_is_released() -> None:
    model = CapacityModel(nodes_of([2]), spread=False)
    whole_gpu, half_gpu = model.all_shapes[1], model.all_shapes[3]
    for shape in (whole_gpu, whole_gpu, half_gpu):
        model.book(model.shapes.book(shape, 0, (0,)))

    assert (model.capacity.idle, model.capacity.free_milli) == ([1], 1000)
    assert model.capacity.slots(0, half_gpu) == 2
    for _ in range(2):
        model.release(0)
    assert (model.capacity.idle, model.capacity.free_milli) == ([1], 1500)
    model.release(0)
    assert (model.capacity.idle, model.capacity.free_milli) == ([2], 2000)
    assert model.capacity.idle_total == 2


def test_gpu_booking_on_an_unknown_node_uses_no_capacity() -> None:
    model = CapacityModel(nodes_of([1]), spread=False)

    whole_gpu, unknown_node = model.all_shapes[1], -1
    model.book(model.shapes.book(whole_gpu, unknown_node, (0,)))

    assert (model.capacity.idle, model.capacity.free_milli) == ([1], 1000)
