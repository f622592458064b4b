"""A node's GPU memory: from its label, or else from its agent's report."""

from __future__ import annotations

import pytest

from clusters.kubernetes.worlds import a_machine, a_pod
from runai.hub_service.clusters.kubernetes.objects.core_objects import RESERVATIONS
from runai.hub_service.clusters.kubernetes.snapshot.gpu_memory import NodeDeviceMemory
from runai.hub_service.model.device import Device


def devices(*sizes: int, kind: str = "GPU") -> list[Device]:
    return [
        Device(number, f"{kind}-{number}", "Fake", mib, simulated=False)
        for number, mib in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("label", "counted", "size"),
    [
        pytest.param(0, devices(16_000, 16_000), 16_000, id="as counted"),
        pytest.param(0, devices(40_000, 16_000), 16_000, id="the smallest"),
        pytest.param(0, devices(0, 16_000), 16_000, id="one of which nobody knows"),
        pytest.param(0, devices(0), 0, id="nobody knows"),
        pytest.param(0, [], 0, id="none"),
        pytest.param(24_000, devices(16_000), 24_000, id="the label first"),
        pytest.param(
            0,
            [*devices(16_000), *devices(4_000, kind="MIG")],
            16_000,
            id="parts by the driver beside whole ones",
        ),
        pytest.param(0, devices(4_000, kind="MIG"), 4_000, id="parts by the driver alone"),
    ],
)
def test_the_devices_of_a_node_have(label, counted, size):
    sizes = NodeDeviceMemory()

    sizes.store("gpu-0", counted)
    (machine,) = sizes.apply_to([a_machine("gpu-0", gpu_memory_mib=label)], ())

    assert machine.gpu_memory_mib == size
    assert not sizes.store("gpu-0", counted)  # an equal report is no change


def test_a_node_that_is_as_it_was_is_the_same_object():
    machines = [a_machine("gpu-0"), a_machine("gpu-1", gpu_memory_mib=8_000)]
    sizes = NodeDeviceMemory()
    assert sizes.apply_to(machines, ()) == machines
    sizes.store("gpu-0", devices(16_000))

    first, second = sizes.apply_to(machines, ()), sizes.apply_to(machines, ())
    assert [m.gpu_memory_mib for m in first] == [16_000, 8_000]
    assert all(before is after for before, after in zip(first, second, strict=True))
    assert second[1] is machines[1]

    sizes.store("gpu-0", devices(12_000))
    machines[1] = a_machine("gpu-1", gpu_memory_mib=9_000)
    assert [m.gpu_memory_mib for m in sizes.apply_to(machines, ())] == [12_000, 9_000]


def test_a_device_that_is_not_counted_for_a_while_leaves_the_size_as_it_was():
    sizes, machine = NodeDeviceMemory(), a_machine("gpu-0")
    sizes.store("gpu-0", devices(16_000))

    assert not sizes.store("gpu-0", [])
    assert sizes.apply_to([machine], ())[0].gpu_memory_mib == 16_000


def test_of_a_node_that_is_gone_nothing_is_kept():
    sizes = NodeDeviceMemory()
    sizes.store("gpu-0", devices(16_000))
    sizes.apply_to([], ())

    assert sizes.apply_to([a_machine("gpu-0")], ())[0].gpu_memory_mib == 0


def test_before_the_agent_has_told_reservations_do():
    machine, sizes = a_machine("gpu-0"), NodeDeviceMemory()
    reserved = [
        a_pod(name, namespace=RESERVATIONS, node="gpu-0", device=f"GPU-{name}", device_mib=mib)
        for name, mib in (("a", 0), ("b", 16_000), ("c", 15_000))
    ]
    # The same annotation on a user's own pod is ignored.
    theirs = a_pod("theirs", node="gpu-0", device_mib=1)

    assert sizes.apply_to([machine], [theirs])[0].gpu_memory_mib == 0
    assert sizes.apply_to([machine], [theirs, *reserved])[0].gpu_memory_mib == 15_000
    sizes.store("gpu-0", devices(12_000))
    assert sizes.apply_to([machine], reserved)[0].gpu_memory_mib == 12_000
