"""A node's GPU memory: from its label, or else from its agent's report."""

from __future__ import annotations

import pytest

from clusters.kubernetes.parsed_objects import a_node, a_pod
from runai.hub_service.clusters.kubernetes.objects.core_objects import RESERVATIONS
from runai.hub_service.clusters.kubernetes.snapshot.gpu_memory import NodeDeviceMemory
from runai.hub_service.model.device import Device


def devices(*sizes: int, kind: str = "GPU") -> list[Device]:
    return [
        Device(number, f"{kind}-{number}", "Fake", mib, simulated=False)
        for number, mib in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("label_mib", "reported", "expected_mib"),
    [
        pytest.param(0, devices(16_000, 16_000), 16_000, id="equal devices"),
        pytest.param(0, devices(40_000, 16_000), 16_000, id="unequal devices"),
        pytest.param(0, devices(0, 16_000), 16_000, id="one device of unknown size"),
        pytest.param(0, devices(0), 0, id="only device of unknown size"),
        pytest.param(0, [], 0, id="no devices"),
        pytest.param(24_000, devices(16_000), 24_000, id="label and report"),
        pytest.param(
            0,
            [*devices(16_000), *devices(4_000, kind="MIG")],
            16_000,
            id="MIG device beside whole devices",
        ),
        pytest.param(0, devices(4_000, kind="MIG"), 4_000, id="MIG device alone"),
    ],
)
def test_node_gpu_memory_is_its_label_or_that_of_the_smallest_whole_device(
    label_mib, reported, expected_mib
):
    device_memory = NodeDeviceMemory()

    device_memory.store("gpu-0", reported)
    (node,) = device_memory.apply_to([a_node("gpu-0", gpu_memory_mib=label_mib)], ())

    assert node.gpu_memory_mib == expected_mib
    assert not device_memory.store("gpu-0", reported)  # an equal report is no change


def test_node_object_is_reused_while_its_gpu_memory_is_unchanged():
    nodes = [a_node("gpu-0"), a_node("gpu-1", gpu_memory_mib=8_000)]
    device_memory = NodeDeviceMemory()
    assert device_memory.apply_to(nodes, ()) == nodes
    device_memory.store("gpu-0", devices(16_000))

    first, second = device_memory.apply_to(nodes, ()), device_memory.apply_to(nodes, ())
    assert [node.gpu_memory_mib for node in first] == [16_000, 8_000]
    assert all(before is after for before, after in zip(first, second, strict=True))
    assert second[1] is nodes[1]

    device_memory.store("gpu-0", devices(12_000))
    nodes[1] = a_node("gpu-1", gpu_memory_mib=9_000)
    assert [node.gpu_memory_mib for node in device_memory.apply_to(nodes, ())] == [12_000, 9_000]


def test_agent_report_without_devices_leaves_the_known_gpu_memory_unchanged():
    device_memory, node = NodeDeviceMemory(), a_node("gpu-0")
    device_memory.store("gpu-0", devices(16_000))

    assert not device_memory.store("gpu-0", [])
    assert device_memory.apply_to([node], ())[0].gpu_memory_mib == 16_000


def test_gpu_memory_of_a_removed_node_is_forgotten():
    device_memory = NodeDeviceMemory()
    device_memory.store("gpu-0", devices(16_000))
    device_memory.apply_to([], ())

    assert device_memory.apply_to([a_node("gpu-0")], ())[0].gpu_memory_mib == 0


def test_gpu_memory_of_a_node_comes_from_reservations_until_its_agent_reports():
    node, device_memory = a_node("gpu-0"), NodeDeviceMemory()
    reserved = [
        a_pod(name, namespace=RESERVATIONS, node="gpu-0", device=f"GPU-{name}", device_mib=mib)
        for name, mib in (("a", 0), ("b", 16_000), ("c", 15_000))
    ]
    # The same annotation on a user's own pod is ignored.
    theirs = a_pod("theirs", node="gpu-0", device_mib=1)

    assert device_memory.apply_to([node], [theirs])[0].gpu_memory_mib == 0
    assert device_memory.apply_to([node], [theirs, *reserved])[0].gpu_memory_mib == 15_000
    device_memory.store("gpu-0", devices(12_000))
    assert device_memory.apply_to([node], reserved)[0].gpu_memory_mib == 12_000
