"""Request shapes: a worker's bookings on devices and in quotas, and its nodes (P3, P5)."""

from __future__ import annotations

from typing import Any

import pytest

from runai.hub_service.scheduler import Mib, MilliGpu, Node, Worker
from runai.hub_service.scheduler.state.request_shape import NODE_TYPE_LABEL, RequestShapes

NODES = [
    Node(name="bare", cpu_milli=4000),
    Node(
        name="big",
        devices=4,
        device_memory_mib=Mib(1000),
        gpu_type="h100",
        labels={"zone": "east", NODE_TYPE_LABEL: "train"},
    ),
    Node(name="closed", devices=4, device_memory_mib=Mib(4000), schedulable=False),
    Node(name="small", devices=1, device_memory_mib=Mib(400), memory_mib=Mib(500)),
]
ALL_OPEN = {"bare", "big", "small"}
BIG, SMALL, UNKNOWN = 1, 3, -1  # indexes of nodes

SHAPES: dict[str, tuple[dict[str, Any], tuple[int, int, int, int], set[str]]] = {
    "no GPU": ({}, (0, 0, 0, 0), ALL_OPEN),
    "one GPU": ({"gpus": 1000}, (1, 1000, 0, 1000), {"big", "small"}),
    "two GPUs": ({"gpus": 2000}, (2, 1000, 0, 2000), {"big"}),
    "all GPUs of a node": ({"gpus": 4000}, (4, 1000, 0, 4000), {"big"}),
    "more GPUs than a node has": ({"gpus": 5000}, (5, 1000, 0, 5000), set()),
    "half a GPU": ({"gpus": 500}, (1, 500, 0, 500), {"big", "small"}),
    "half of each of two GPUs": ({"gpus": 500, "devices_wanted": 2}, (2, 500, 0, 1000), {"big"}),
    "memory is charged by the smallest device": (
        {"gpu_memory_mib": 100},
        (1, 0, 100, 250),
        {"big", "small"},
    ),
    "memory of the smaller device": ({"gpu_memory_mib": 400}, (1, 0, 400, 1000), {"big", "small"}),
    "memory of the larger device": ({"gpu_memory_mib": 401}, (1, 0, 401, 401), {"big"}),
    "memory of no device": ({"gpu_memory_mib": 1001}, (1, 0, 1001, 1000), set()),
    "memory on two devices": (
        {"gpu_memory_mib": 100, "devices_wanted": 2},
        (2, 0, 100, 200),
        {"big"},
    ),
    "all CPU of a node": ({"cpu_milli": 4000}, (0, 0, 0, 0), ALL_OPEN),
    "more CPU than a node has": ({"cpu_milli": 4001}, (0, 0, 0, 0), {"big", "small"}),
    "all memory of a node": ({"memory_mib": 500}, (0, 0, 0, 0), ALL_OPEN),
    "more memory than a node has": ({"memory_mib": 501}, (0, 0, 0, 0), {"bare", "big"}),
    "selector": ({"node_selector": {"zone": "east"}}, (0, 0, 0, 0), {"big"}),
    "partly matching": ({"node_selector": {"zone": "east", "rack": "1"}}, (0, 0, 0, 0), set()),
    "a GPU type": ({"gpu_types": ("a100", "h100")}, (0, 0, 0, 0), {"big"}),
    "named nodes": ({"nodes": ("small", "closed")}, (0, 0, 0, 0), {"small"}),
    "empty list of nodes": ({"nodes": ()}, (0, 0, 0, 0), set()),
}


@pytest.mark.parametrize(("worker_fields", "booked", "node_names"), SHAPES.values(), ids=SHAPES)
def test_request_shape_has_its_booked_gpus_and_memory_and_its_eligible_nodes(
    worker_fields: dict[str, Any], booked: tuple[int, int, int, int], node_names: set[str]
) -> None:
    shape = RequestShapes(NODES).shape_of(Worker(name="w", **worker_fields), ())

    assert (shape.devices, shape.milli, shape.mib, shape.quota) == booked
    assert {NODES[index].name for index in shape.nodes} == node_names


def test_node_types_of_all_ancestor_projects_restrict_the_eligible_nodes() -> None:
    shapes = RequestShapes(NODES)
    worker = Worker(name="w")

    assert shapes.shape_of(worker, (("train", "build"),)).nodes == {BIG}
    assert shapes.shape_of(worker, (("train",), ("build",))).nodes == set()


def test_equal_worker_requests_share_one_request_shape() -> None:
    shapes = RequestShapes(NODES)
    first = shapes.shape_of(Worker(name="a", gpus=MilliGpu(500)), ())

    running_worker = Worker(name="b", gpus=MilliGpu(500), node="big", devices=(1,))
    assert shapes.shape_of(running_worker, ()) is first
    other_shapes = [
        shapes.shape_of(worker, types)
        for worker, types in [
            (Worker(name="c", gpus=MilliGpu(250)), ()),
            (Worker(name="c", gpus=MilliGpu(500), cpu_milli=1), ()),
            (Worker(name="c", gpus=MilliGpu(500), memory_mib=Mib(1)), ()),
            (Worker(name="c", gpus=MilliGpu(500), devices_wanted=2), ()),
            (Worker(name="c", gpus=MilliGpu(500), nodes=("big",)), ()),
            (Worker(name="c", gpus=MilliGpu(500), gpu_types=("h100",)), ()),
            (Worker(name="c", gpus=MilliGpu(500), node_selector={"zone": "east"}), ()),
            (Worker(name="c", gpus=MilliGpu(500)), (("train",),)),
        ]
    ]

    assert len({first, *other_shapes}) == 9
    assert [shape.order for shape in (first, *other_shapes)] == list(range(9))


@pytest.mark.parametrize(
    ("worker_fields", "node", "devices", "mib", "quota", "shares"),
    [
        pytest.param({"gpus": 500}, BIG, (0,), 500, 500, 500, id="fraction books its memory"),
        pytest.param({"gpus": 333}, SMALL, (0,), 133, 333, 333, id="rounded down"),
        pytest.param({"gpu_memory_mib": 101}, BIG, (0,), 101, 101, 101, id="memory on big"),
        pytest.param({"gpu_memory_mib": 101}, SMALL, (0,), 101, 253, 253, id="memory rounded up"),
        pytest.param({"gpu_memory_mib": 100}, UNKNOWN, (), 100, 250, 0, id="unknown node"),
        pytest.param({"gpus": 2000}, BIG, (1, 3), 1000, 2000, 1000, id="whole devices"),
    ],
)
def test_gpu_booking_charges_memory_and_quota_by_the_devices_of_its_node(
    worker_fields: dict[str, Any],
    node: int,
    devices: tuple[int, ...],
    mib: int,
    quota: int,
    shares: int,
) -> None:
    shapes = RequestShapes(NODES)

    booking = shapes.book(shapes.shape_of(Worker(name="w", **worker_fields), ()), node, devices)

    assert (booking.node, booking.devices) == (node, devices)
    assert (booking.mib, booking.quota, booking.shares) == (mib, quota, shares)
