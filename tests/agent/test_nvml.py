"""The quirks of NVIDIA's library, each as the fake library shows it."""

from __future__ import annotations

import subprocess

import psutil
import pynvml
import pytest

from runai.hub_service.agent import usage
from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.processes.process_owners import ProcessOwner, ProcessOwners
from runai.hub_service.cli.doctor.gpu_checks import check_driver
from waiting import eventually

NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 6, 13, 15, 999

GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses_v3"

GPU = "gpu GPU-0 1000 100 250 40 Fake H200"


@pytest.fixture
def poll(nvml, allocate, sleeping_processes):
    """Open the devices of a state, then poll in another one; "PID" in it is a sleeping process."""
    process, _ = sleeping_processes
    opened = []

    def run(*lines, before=(GPU,)):
        nvml.write(*(line.replace("PID", str(process.pid)) for line in before))
        source = NvmlDevices()
        opened.append(source)
        nvml.write(*(line.replace("PID", str(process.pid)) for line in lines))
        allocations = [allocate("vision/a", "GPU-0", process=process)]
        return usage.report("here", source.poll(allocations), allocations)

    yield run
    for source in opened:
        source.close()


def utilization(report):
    return {(s.workload, s.device): s.utilization for s in report.samples}


WORKLOAD_DEVICE = ("vision/a", "GPU-0")
UNUSABLE = "it is installed and does not work: "


def test_device_memory_excludes_the_drivers_reserve(nvml):
    nvml.write("gpu GPU-0 143771 606 0 0 H200")
    source = NvmlDevices()

    assert [d.memory_mib for d in source.devices()] == [143771 - 606]
    source.close()


def test_device_memory_of_an_old_driver_includes_its_reserve(nvml):
    nvml.write(GPU, f"fault -1 nvmlDeviceGetMemoryInfo_v2 {FUNCTION_NOT_FOUND}")
    source = NvmlDevices()

    assert [d.memory_mib for d in source.devices()] == [1000]
    assert source.poll([]).devices[0].memory_mib == 100 + 250  # reserved and used
    source.close()


def test_agent_reports_total_utilization_and_memory_of_a_device(poll):
    report = poll(GPU)

    assert [(d.device, d.utilization, d.memory_mib, d.fault) for d in report.devices] == [
        ("GPU-0", 0.4, 250, "")
    ]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # sample GPU PID TIMESTAMP_US PERCENT
        pytest.param(["sample 0 PID 10 80"], 0.8, id="one sample"),
        pytest.param(["sample 0 PID 10 80", "sample 0 PID 20 40"], 0.6, id="two samples"),
        pytest.param(["sample 0 PID 10 0", "sample 0 PID 20 50"], 0.25, id="zero in a sample"),
        pytest.param(["sample 0 PID 10 80", "sample 0 0 20 90"], 0.8, id="PID 0 is an empty slot"),
        pytest.param(
            ["sample 0 PID 10 80", "sample 0 PID 20 4294967295"], 0.8, id="sentinel value"
        ),
        pytest.param(["sample 0 PID 5 100", "sample 0 PID 10 20"], 0.2, id="older sample repeated"),
        pytest.param(["sample 0 PID 5 100"], 0.0, id="older sample only"),
        pytest.param([], 0.0, id="no sample"),
        pytest.param([f"fault 0 nvmlDeviceGetProcessUtilization {NOT_FOUND}"], 0.0, id="not found"),
        pytest.param(["fault 0 nvmlDeviceGetProcessUtilization 0"], 0.0, id="empty reply"),
    ],
)
def test_new_utilization_samples_are_averaged(poll, samples, expected):
    # The agent starts after the sample of time 5.
    report = poll(GPU, "proc 0 PID 60 C", *samples, before=(GPU, "sample 0 1 5 1"))

    assert utilization(report) == {WORKLOAD_DEVICE: expected}


def test_driver_utilization_sample_is_not_reported_twice(nvml, allocate, sleeping_processes):
    process, _ = sleeping_processes
    nvml.write(GPU)
    source = NvmlDevices()
    nvml.write(GPU, f"proc 0 {process.pid} 60 C", f"sample 0 {process.pid} 10 80")
    allocations = [allocate("vision/a", "GPU-0", process=process)]

    utilizations = [
        utilization(usage.report("h", source.poll(allocations), allocations)) for _ in range(2)
    ]

    assert utilizations == [{WORKLOAD_DEVICE: 0.8}, {WORKLOAD_DEVICE: 0.0}]
    source.close()


def test_utilization_of_a_reused_pid_is_divided_at_the_later_process_start(
    nvml, allocate, sleeping_processes, monkeypatch
):
    later, other = sleeping_processes
    nvml.write(GPU)
    source = NvmlDevices()
    allocations = [
        allocate("vision/a", "GPU-0", process=later),
        allocate("vision/b", "GPU-0", process=other),
    ]
    later_start_s = 15e-6  # between the samples at 10 and 20 µs
    former_owner = ProcessOwner(1.0, allocations[1], "ana", "python3")
    monkeypatch.setattr(
        ProcessOwners,
        "previous_owner",
        lambda _, pid: (former_owner, later_start_s) if pid == later.pid else None,
    )
    nvml.write(GPU, f"sample 0 {later.pid} 10 80", f"sample 0 {later.pid} 20 40")

    report = usage.report("h", source.poll(allocations), allocations)
    source.close()

    assert utilization(report) == {WORKLOAD_DEVICE: 0.2, ("vision/b", "GPU-0"): 0.4}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # proc GPU PID MIB LIST, on the list of compute, graphics or MPS compute processes
        pytest.param(["proc 0 PID 60 C"], 60, id="one list"),
        pytest.param(["proc 0 PID 60 C", "proc 0 PID 70 G"], 70, id="larger of two lists"),
        pytest.param(["proc 0 PID -1 C", "proc 0 PID 70 M"], 70, id="unavailable on one list"),
        pytest.param(["proc 0 PID -1 C"], None, id="unavailable"),
        pytest.param(
            [
                "proc 0 PID 60 C",
                f"fault 0 {GRAPHICS} {NOT_SUPPORTED}",
            ],
            60,
            id="unsupported list",
        ),
    ],
)
def test_nvml_process_lists_are_merged_without_doubled_memory(poll, lines, expected):
    (sample,) = poll(GPU, *lines).samples

    assert sample.memory_mib == expected


def test_utilization_is_none_if_the_driver_does_not_support_it(poll):
    report = poll(
        GPU,
        "proc 0 PID 60 C",
        "proc 0 1 60 C",
        f"fault 0 nvmlDeviceGetProcessUtilization {NOT_SUPPORTED}",
    )

    assert utilization(report) == {WORKLOAD_DEVICE: None, ("", "GPU-0"): None}


def test_lone_process_has_the_device_load_if_none_is_known_per_process(poll):
    report = poll(
        GPU, "proc 0 PID 60 C", f"fault 0 nvmlDeviceGetProcessUtilization {NOT_SUPPORTED}"
    )

    assert utilization(report) == {WORKLOAD_DEVICE: 0.4}


def test_processes_of_a_lone_workload_have_the_device_load_together(nvml, allocate, start):
    process = start(relation="grandchild")
    parent = process.parent()
    unsupported = f"fault 0 nvmlDeviceGetProcessUtilization {NOT_SUPPORTED}"
    nvml.write(GPU, f"proc 0 {process.pid} 60 C", f"proc 0 {parent.pid} 60 C", unsupported)
    source = NvmlDevices()
    allocations = [allocate("vision/a", "GPU-0", process=parent)]
    report = usage.report("here", source.poll(allocations), allocations)
    source.close()

    assert utilization(report) == {WORKLOAD_DEVICE: 0.4}
    assert [p.utilization for p in report.processes] == [None, None]


@pytest.fixture
def mps_server(tmp_path):
    """Start a process with the name of the MPS server."""
    program = tmp_path / "nvidia-cuda-mps-server"
    program.write_text("#!/bin/sh\nread line\n")
    program.chmod(0o755)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as server:
        eventually(lambda: psutil.Process(server.pid).name().startswith("nvidia-cuda-mps"))
        yield server.pid


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(["sample 0 SERVER 10 70"], None, id="samples of the server only"),
        pytest.param(["sample 0 SERVER 10 70", "sample 0 PID 10 30"], 0.3, id="samples of both"),
        pytest.param(["sample 0 PID 10 30"], 0.3, id="samples of the client only"),
        pytest.param(["sample 0 1 10 70"], 0.0, id="samples of another process only"),
        pytest.param([], 0.0, id="no samples"),
    ],
)
def test_mps_client_is_not_idle_while_its_server_works(poll, mps_server, samples, expected):
    lines = ["proc 0 SERVER 30 C", "proc 0 PID 60 C", "proc 0 PID 60 M", *samples]
    report = poll(GPU, *(line.replace("SERVER", str(mps_server)) for line in lines))

    assert utilization(report)[WORKLOAD_DEVICE] == expected


def test_report_includes_processes_outside_workloads(poll):
    report = poll(GPU, "proc 0 1 900 C", "sample 0 1 10 70", "proc 0 PID 60 C")

    assert utilization(report) == {("", "GPU-0"): 0.7, WORKLOAD_DEVICE: 0.0}


def test_exited_process_is_reported_without_a_workload(poll):
    report = poll(GPU, "proc 0 4194304 900 C")  # above the largest possible PID

    assert utilization(report) == {("", "GPU-0"): 0.0, WORKLOAD_DEVICE: 0.0}


def test_workload_on_an_unallocated_device_is_reported(poll):
    two_gpus = (GPU, "gpu GPU-1 1000 0 0 0 Fake")
    report = poll(*two_gpus, "proc 1 PID 60 C", "sample 1 PID 10 30", before=two_gpus)

    assert utilization(report) == {WORKLOAD_DEVICE: 0.0, ("vision/a", "GPU-1"): 0.3}


def test_device_with_a_failed_query_has_no_values_beside_measured_devices(poll):
    two_gpus = (GPU, "gpu GPU-1 1000 0 0 7 Fake")
    fault = f"fault 0 nvmlDeviceGetComputeRunningProcesses_v3 {UNKNOWN}"
    report = poll(*two_gpus, fault, before=two_gpus)

    assert utilization(report) == {}
    assert [(d.utilization, d.memory_mib) for d in report.devices] == [(None, None), (0.07, 0)]


@pytest.mark.parametrize(("code", "healthy"), [(GPU_IS_LOST, False), (UNKNOWN, True)])
def test_device_with_an_nvml_loss_code_has_a_fault(poll, code, healthy):
    report = poll(GPU, f"fault 0 nvmlDeviceGetMemoryInfo_v2 {code}")

    assert [not d.fault for d in report.devices] == [healthy]


def test_mig_parent_device_has_no_utilization(poll):
    report = poll("gpu GPU-0 1000 100 250 -1 Fake")

    assert [(d.utilization, d.memory_mib) for d in report.devices] == [(None, 250)]


@pytest.mark.parametrize(
    ("fault", "verdict", "text", "remedy"),
    [
        ("", "ok", "580.00, 1 GPU(s) here", ""),
        ("fault -1 nvmlDeviceGetCount_v2 999", "failure", "it does not answer: ", "nvidia-smi"),
        ("fault -1 nvmlInitWithFlags 9", "failure", f"{UNUSABLE}Driver Not Loaded", "modprobe"),
        ("fault -1 nvmlInitWithFlags 18", "failure", f"{UNUSABLE}RM has detected", "restart"),
        ("fault -1 nvmlInitWithFlags 4", "failure", f"{UNUSABLE}Insufficient", "nvidia-smi"),
    ],
    ids=["responds", "does not respond", "not loaded", "version mismatch", "no permission"],
)
def test_doctor_reports_the_state_of_the_driver(nvml, fault, verdict, text, remedy):
    nvml.write("gpu GPU-0 1000 100 0 0 Fake", *([fault] if fault else []))

    result = check_driver()

    assert (result.subject, result.verdict) == ("GPU driver", verdict)
    assert result.text.startswith(text)
    assert remedy in result.mend


def test_doctor_notes_a_machine_without_a_driver(monkeypatch):
    def no_library(name):
        raise OSError(name)

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)

    result = check_driver()

    assert result == (
        "note",
        "GPU driver",
        "none on this machine (NVML Shared Library Not Found)",
        "",
    )
