"""Allocations for agents are built once for each record, and never from an outdated one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.states.state import StoredWorkload
from runai.hub_service.clusters.workloads.agent_allocations import AgentAllocations
from runai.hub_service.model.records import (
    Process,
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare

DEVICES = tuple(SimulatedDevices(2, node="lab").devices())
SPEC = WorkloadSpec("vision", "a", user="ana", kind="job", command=("true",), gpus=MilliGpu(500))


def worker(index: int, **other) -> WorkerRecord:
    held, process = (DeviceShare(index, MilliGpu(500)),), Process(100 + index, 5.0)
    runs = WorkerRecord(f"vision/a-{index}", index, "running", "lab", held, process=process)
    return replace(runs, **other)


def row(*workers: WorkerRecord) -> StoredWorkload:
    return StoredWorkload(WorkloadRecord(SPEC, WorkloadState.RUNNING, 0.0, workers))


def test_allocations_reuse_unchanged_objects_and_rebuild_changed_ones():
    drawn, first, second = AgentAllocations(), row(worker(0)), row(worker(1))
    second = replace(second, record=replace(second.record, spec=replace(SPEC, name="b")))
    before = drawn.of("lab", DEVICES, [first, second])
    stops = replace(second, record=replace(second.record, checkpoint_dir="/elsewhere"))
    after = drawn.of("lab", DEVICES, [first, stops])

    assert after[0] is before[0]
    assert [one.checkpoint_dir for one in after] == ["", "/elsewhere"]


@pytest.mark.parametrize(
    ("again", "names"),
    [
        pytest.param(row(worker(0), worker(1)), ["vision/a-0", "vision/a-1"], id="the same"),
        pytest.param(row(worker(0), worker(1, state="pending")), ["vision/a-0"], id="one waits"),
        pytest.param(row(worker(0, node="far"), worker(1)), ["vision/a-1"], id="one moved"),
        pytest.param(row(worker(0, node="far"), worker(1, node="far")), [], id="all moved"),
        pytest.param(None, [], id="gone"),
    ],
)
def test_only_workers_that_run_on_the_node_are_told(again, names):
    drawn = AgentAllocations()
    drawn.of("lab", DEVICES, [row(worker(0), worker(1))])
    for _ in range(2):
        found = drawn.of("lab", DEVICES, [again] if again else [])

        assert [one.worker for one in found] == names


def test_each_node_has_its_own():
    drawn, one = AgentAllocations(), row(worker(0), worker(1, node="far"))
    for _ in range(2):
        assert [a.worker for a in drawn.of("lab", DEVICES, [one])] == ["vision/a-0"]
        assert [a.worker for a in drawn.of("far", DEVICES, [one])] == ["vision/a-1"]


def test_all_are_drawn_anew_after_the_clock_was_set_and_for_other_devices():
    drawn, one = AgentAllocations(), row(worker(0))

    def told(booted, devices=DEVICES):
        (found,) = drawn.of(
            "lab", devices, [one], booted=booted, convert=lambda p: replace(p, created=booted)
        )
        return found

    before = told(1.0)
    larger = tuple(replace(device, memory_mib=2 * device.memory_mib) for device in DEVICES)
    assert told(1.0) is before
    assert told(2.0).process == Process(100, 2.0)
    assert [told(2.0, larger).limits_mib, before.limits_mib] == [
        (DEVICES[0].memory_mib,),
        (DEVICES[0].memory_mib // 2,),
    ]
