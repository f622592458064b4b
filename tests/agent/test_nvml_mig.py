"""A GPU partitioned by MIG: each instance is a device, the GPU itself is none."""

from __future__ import annotations

import pytest

from runai.hub_service.agent import usage
from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.devices.sources import open_devices

NO_PERMISSION = 4
MIG_LAYOUT = (
    "gpu GPU-0 143771 600 0 -1 H200",
    "mig 0 MIG-a 1 0 71424 12 100 H200 MIG 3g.71gb",
    "mig 0 MIG-b 2 0 35712 12 200 H200 MIG 2g.35gb",
    "gpu GPU-1 143771 600 50 30 H200",
)


@pytest.fixture
def poll(nvml, allocate, sleeping_processes):
    """Poll a state; "PID" and "OTHER" in it are the sleeping processes."""
    processes = dict(zip(("PID", "OTHER"), sleeping_processes, strict=True))
    opened = []

    def with_pids(lines):
        for line in lines:
            text = line
            for word, process in processes.items():
                text = text.replace(word, str(process.pid))
            yield text

    def run(*lines, before=()):
        nvml.write(*MIG_LAYOUT, *with_pids(before))
        source = NvmlDevices()
        opened.append(source)
        nvml.write(*MIG_LAYOUT, *with_pids(lines))
        allocations = [
            allocate("vision/a", "MIG-a", process=processes["PID"]),
            allocate("nlp/b", "MIG-b", process=processes["OTHER"]),
        ]
        return usage.report("here", source.poll(allocations), allocations)

    yield run
    for source in opened:
        source.close()


def test_mig_instances_replace_their_gpu(nvml):
    nvml.write(*MIG_LAYOUT)
    source = NvmlDevices()

    assert [(d.index, d.uuid, d.name, d.memory_mib) for d in source.devices()] == [
        (0, "MIG-a", "H200 MIG 3g.71gb", 71424 - 12),
        (1, "MIG-b", "H200 MIG 2g.35gb", 35712 - 12),
        (2, "GPU-1", "H200", 143771 - 600),  # without the reserved memory
    ]
    source.close()


@pytest.mark.parametrize(("number", "uuids"), [(1, ["MIG-a"]), (3, ["MIG-a", "MIG-b", "GPU-1"])])
def test_requested_number_of_gpus_includes_mig_instances(nvml, number, uuids):
    nvml.write(*MIG_LAYOUT)
    source = open_devices(number)

    assert [d.uuid for d in source.devices()] == uuids
    assert [d.device for d in source.poll([]).devices] == uuids
    source.close()


def test_mig_memory_is_reported_per_instance_without_utilization(poll):
    report = poll("proc 0 PID 90 C 1 0", "proc 0 OTHER 150 C 2 0")

    assert [(d.device, d.utilization, d.memory_mib) for d in report.devices] == [
        ("MIG-a", None, 100), ("MIG-b", None, 200), ("GPU-1", 0.3, 50),
    ]  # fmt: skip
    assert {(s.workload, s.device): (s.utilization, s.memory_mib) for s in report.samples} == {
        ("vision/a", "MIG-a"): (None, 90),
        ("nlp/b", "MIG-b"): (None, 150),
    }


PROCESSES = ("proc 0 PID 90 C 1 0", "proc 0 OTHER 150 C 2 0")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # gpm GPU INSTANCE TICKS BUSY: 25 of 100 ticks are busy after 40 of 100.
        pytest.param(["gpm 0 1 200 65", "gpm 0 2 200 0"], (0.25, 0.0), id="two instances"),
        pytest.param(["gpm 0 1 200 65"], (0.25, None), id="one instance without counters"),
        pytest.param(["gpm 0 1 100 40", "gpm 0 2 200 100"], (None, 1.0), id="equal ticks"),
        pytest.param(
            ["gpm 0 1 200 65", f"fault 0 nvmlGpmMigSampleGet {NO_PERMISSION}"],
            (None, None),
            id="no permission",
        ),
    ],
)
def test_mig_instance_utilization_is_read_from_its_gpm_counters(poll, lines, expected):
    counters_before = ("gpm 0 1 100 40", "gpm 0 2 100 0", *PROCESSES)
    report = poll(*PROCESSES, *lines, before=counters_before)

    assert tuple(d.utilization for d in report.devices) == (*expected, 0.3)
    assert {s.device: s.utilization for s in report.samples} == dict(
        zip(("MIG-a", "MIG-b"), expected, strict=True)
    )


def test_mig_utilization_is_measured_since_the_previous_poll(nvml):
    nvml.write(*MIG_LAYOUT, "gpm 0 1 100 40")
    source = NvmlDevices()
    loads = []
    for counters in ("200 65", "300 65", "400 165"):
        nvml.write(*MIG_LAYOUT, f"gpm 0 1 {counters}")
        loads.append(source.poll([]).devices[0].utilization)
    source.close()
    source.close()  # closing twice does nothing

    assert loads == [0.25, 0.0, 1.0]


def test_compute_instances_that_share_gpm_counters_have_no_utilization(nvml):
    gpu, first = MIG_LAYOUT[:2]
    shared_instance = (gpu, first, first.replace("MIG-a 1 0", "MIG-c 1 1"))
    nvml.write(*shared_instance, "gpm 0 1 100 40")
    source = NvmlDevices()
    nvml.write(*shared_instance, "gpm 0 1 200 65")

    assert [d.utilization for d in source.poll([]).devices] == [None, None]
    source.close()


def test_process_on_an_unallocated_mig_instance_is_reported_on_that_instance(poll):
    report = poll("proc 0 PID 90 C 2 0")

    assert [(p.workload, p.device) for p in report.processes] == [("vision/a", "MIG-b")]


def test_mig_instance_without_a_process_is_idle(poll):
    report = poll()

    assert {s.device: s.utilization for s in report.samples} == {"MIG-a": 0.0, "MIG-b": 0.0}


@pytest.mark.parametrize(
    ("xid", "broken"),
    [("xid 0 1 95 2 0", {"MIG-b"}), ("xid 0 1 79", {"MIG-a", "MIG-b"})],
    ids=["XID of an instance", "XID of the GPU"],
)
def test_xid_breaks_the_named_mig_instance_or_all_instances_of_the_gpu(poll, xid, broken):
    assert {d.device for d in poll(xid).devices if d.fault} == broken


def test_removed_mig_instance_does_not_affect_the_remaining_devices(nvml):
    nvml.write(*MIG_LAYOUT)
    source = NvmlDevices()
    nvml.write(*(line for line in MIG_LAYOUT if "MIG-b" not in line))

    poll = source.poll([])

    assert poll.failed == {"MIG-b"}
    assert [d.memory_mib for d in poll.devices] == [100, None, 50]
    source.close()


def test_mig_gpu_without_instances_offers_no_device(nvml):
    nvml.write("gpu GPU-0 1000 0 0 0 A", "gpu GPU-1 1000 0 0 0 B", "empty 0")
    source = NvmlDevices()

    assert [(d.index, d.uuid) for d in source.devices()] == [(0, "GPU-1")]
    source.close()
