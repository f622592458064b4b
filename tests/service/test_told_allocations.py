"""What an agent is told is what is so now, whether or not it was told the same before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runai.hub_service.agent.simulated import SimulatedDevices
from runai.hub_service.api.told_allocations import ToldAllocations
from runai.hub_service.clusters.records import Allocation, Process
from runai.hub_service.scheduler.model import DeviceShare
from runai.hub_service.scheduler.quantity import MilliGpu

DEVICES = SimulatedDevices(2, node="lab").devices()
OTHERS = SimulatedDevices(2, node="far").devices()
A = Allocation(
    "vision/a", "vision/a-0", "vision", "ana", (DeviceShare(0, MilliGpu(500)),), limits_mib=(8192,)
)
B = replace(A, workload="vision/b", worker="vision/b-0", shares=(DeviceShare(1, MilliGpu(500)),))


@pytest.mark.parametrize(
    ("allocations", "devices", "releasing"),
    [
        pytest.param([A, B], DEVICES, set(), id="the same"),
        pytest.param([replace(A), replace(B)], DEVICES, set(), id="others that are equal"),
        pytest.param([replace(A, process=Process(7, 1.0)), B], DEVICES, set(), id="a process"),
        pytest.param([B], DEVICES, set(), id="one fewer"),
        pytest.param([A, B], OTHERS, set(), id="other devices"),
        pytest.param([A, B], DEVICES, {"vision/b"}, id="one releases"),
        pytest.param([A, B], DEVICES[:1], set(), id="a device is gone"),
    ],
)
def test_a_reply_is_as_if_nothing_had_been_told_before(allocations, devices, releasing):
    told = ToldAllocations()
    told.reply("lab", DEVICES, [A, B], {"vision/a"})
    told.reply("lab", DEVICES, [A, B], set())
    found = told.reply("lab", devices, allocations, releasing)

    assert found == ToldAllocations().reply("lab", devices, allocations, releasing)
    assert [one.worker for one in found.allocations] == [one.worker for one in allocations]


def test_what_is_as_before_is_not_drawn_again():
    told = ToldAllocations()
    first = told.reply("lab", DEVICES, [A, B], set()).allocations
    again = told.reply("lab", DEVICES, [A, B], {"vision/b"}).allocations

    assert [one is other for one, other in zip(first, again, strict=True)] == [True, False]
