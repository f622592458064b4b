"""Allocations for agents are built once for each record, and never from an outdated one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
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


def worker(index: int, **fields) -> WorkerRecord:
    shares, process = (DeviceShare(index, MilliGpu(500)),), Process(100 + index, 5.0)
    running_worker = WorkerRecord(
        f"vision/a-{index}", index, "running", "lab", shares, process=process
    )
    return replace(running_worker, **fields)


def row(*worker_records: WorkerRecord) -> WorkloadRecord:
    return WorkloadRecord(SPEC, WorkloadState.RUNNING, 0.0, worker_records)


def test_agent_allocations_reuse_unchanged_objects_and_rebuild_changed_ones():
    allocations, first, second = AgentAllocations(), row(worker(0)), row(worker(1))
    second = replace(second, spec=replace(SPEC, name="b"))
    before = allocations.on_node("lab", DEVICES, [first, second])
    changed = replace(second, checkpoint_dir="/elsewhere")
    after = allocations.on_node("lab", DEVICES, [first, changed])

    assert after[0] is before[0]
    assert [allocation.checkpoint_dir for allocation in after] == ["", "/elsewhere"]


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        pytest.param(row(worker(0), worker(1)), ["vision/a-0", "vision/a-1"], id="both run"),
        pytest.param(row(worker(0), worker(1, state="pending")), ["vision/a-0"], id="second waits"),
        pytest.param(row(worker(0, node="far"), worker(1)), ["vision/a-1"], id="first moved"),
        pytest.param(row(worker(0, node="far"), worker(1, node="far")), [], id="both moved"),
        pytest.param(None, [], id="workload removed"),
    ],
)
def test_agent_allocations_have_only_workers_running_on_the_node(current, expected):
    allocations = AgentAllocations()
    allocations.on_node("lab", DEVICES, [row(worker(0), worker(1))])
    for _ in range(2):
        entries = allocations.on_node("lab", DEVICES, [current] if current else [])

        assert [entry.worker for entry in entries] == expected


def test_agent_allocations_are_separate_for_each_node():
    allocations, running_row = AgentAllocations(), row(worker(0), worker(1, node="far"))
    for _ in range(2):
        assert [a.worker for a in allocations.on_node("lab", DEVICES, [running_row])] == [
            "vision/a-0"
        ]
        assert [a.worker for a in allocations.on_node("far", DEVICES, [running_row])] == [
            "vision/a-1"
        ]


def test_agent_allocations_are_rebuilt_for_a_set_clock_and_other_devices():
    allocations, running_row = AgentAllocations(), row(worker(0))

    def build(booted, devices=DEVICES):
        (allocation,) = allocations.on_node(
            "lab",
            devices,
            [running_row],
            booted=booted,
            convert=lambda p: replace(p, created=booted),
        )
        return allocation

    before = build(1.0)
    larger = tuple(replace(device, memory_mib=2 * device.memory_mib) for device in DEVICES)
    assert build(1.0) is before
    assert build(2.0).process == Process(100, 2.0)
    assert [build(2.0, larger).limits_mib, before.limits_mib] == [
        (DEVICES[0].memory_mib,),
        (DEVICES[0].memory_mib // 2,),
    ]
