"""Detection of broken GPUs by XIDs, recovery actions, remapped rows and lost devices."""

from __future__ import annotations

import pynvml
import pytest

from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.devices.nvml_health import CRITICAL_XIDS, STATE_INTERVAL_S, Health
from runai.hub_service.agent.devices.nvml_inventory import open_gpus
from runai.hub_service.agent.devices.sources import open_devices

GPU_IS_LOST, RESET_REQUIRED, NOT_SUPPORTED, TIMEOUT_ERROR, UNKNOWN = 15, 16, 3, 10, 999
NO_ACTION, RESET, REBOOT = 0, 1, 2  # recovery actions

TWO_GPUS = ("gpu GPU-0 1000 100 0 0 H200", "gpu GPU-1 1000 100 0 0 H200")
NO_RECOVERY = f"fault -1 nvmlDeviceGetFieldValues {NOT_SUPPORTED}"


@pytest.fixture
def faults(nvml):
    """Open the devices of a healthy state; yield a function that returns another state's faults."""
    nvml.write(*TWO_GPUS)
    source = NvmlDevices()

    def poll_faults(*lines: str) -> dict[str, str]:
        nvml.write(*TWO_GPUS, *lines)
        return {d.device: d.fault for d in source.poll([]).devices if d.fault}

    yield poll_faults
    source.close()


def test_healthy_gpus_have_no_fault(faults):
    assert faults() == {}


@pytest.mark.parametrize("code", [48, 79, 95])
def test_critical_xid_marks_the_gpu_faulty(faults, code):
    # An XID event of GPU 1, with the serial number 1.
    assert faults(f"xid 1 1 {code}") == {"GPU-1": f"XID {code}: {CRITICAL_XIDS[code]}"}


def test_application_and_corrected_xids_are_no_fault(faults):
    codes = [13, 31, 43, 45, 63, 68, 92, 94, 109]

    assert faults(*(f"xid 1 {number} {code}" for number, code in enumerate(codes, 1))) == {}
    assert CRITICAL_XIDS.keys().isdisjoint(codes)


def test_xid_fault_stays_in_later_polls(faults):
    assert faults("xid 0 1 79")
    assert faults("xid 0 1 79") == {"GPU-0": "XID 79: GPU has fallen off the bus"}


def test_gpu_fault_before_agent_start_is_read_from_the_recovery_action(nvml):
    nvml.write(*TWO_GPUS, "xid 0 1 79", f"recovery 0 {REBOOT}")
    source = NvmlDevices()

    assert [d.fault for d in source.devices()] == ["the driver asks for a reboot of the node", ""]
    source.close()


def test_simultaneous_xid_events_are_all_reported(faults):
    assert set(faults("xid 0 1 13", "xid 1 2 48", "xid 0 3 95")) == {"GPU-0", "GPU-1"}


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        pytest.param([f"recovery 0 {RESET}"], "the driver asks for a reset of the GPU", id="reset"),
        pytest.param([f"recovery 0 {NO_ACTION}"], "", id="no recovery action"),
        pytest.param(["rows 0"], "memory rows could not be remapped", id="remapping failed"),
        pytest.param([f"fault 0 * {GPU_IS_LOST}"], "the driver has lost it", id="lost"),
        pytest.param([f"fault 0 * {RESET_REQUIRED}"], "it must be reset", id="reset required"),
        pytest.param([f"fault 0 * {UNKNOWN}"], "", id="unknown error"),
    ],
)
def test_gpu_fault_is_read_from_the_device_state(nvml, lines, fault):
    nvml.write(*TWO_GPUS)
    health = Health(open_gpus(None))
    source = NvmlDevices()
    nvml.write(*TWO_GPUS, *lines)

    polled_faults = {d.device: d.fault for d in source.poll([]).devices if d.fault}

    assert health.faults().get("GPU-0", "") == fault
    # The source queried the state at its start, and next in a minute; each poll finds lost GPUs.
    assert polled_faults.get("GPU-0", "") in {fault, ""}
    health.close()
    source.close()


@pytest.fixture
def clocked_health(nvml):
    """Return a Health with a clock of its own."""
    nvml.write(*TWO_GPUS)
    times = [1000.0]
    health = Health(open_gpus(None), clock=lambda: times[0])
    yield health, times
    health.close()


def test_gpu_is_healthy_again_after_its_recovery_action_is_cleared(nvml, clocked_health):
    health, times = clocked_health
    nvml.write(*TWO_GPUS, "xid 0 1 95", f"recovery 0 {RESET}")
    assert health.faults() == {"GPU-0": "XID 95: uncontained memory error"}

    times[0] += STATE_INTERVAL_S
    assert set(health.faults()) == {"GPU-0"}

    nvml.write(*TWO_GPUS, "xid 0 1 95", f"recovery 0 {NO_ACTION}")
    times[0] += STATE_INTERVAL_S
    assert health.faults() == {}


def test_xid_fault_stays_for_a_minute_without_a_recovery_action(nvml, clocked_health):
    health, times = clocked_health
    nvml.write(*TWO_GPUS, "xid 0 1 95", f"recovery 0 {NO_ACTION}")
    health.faults()

    times[0] += STATE_INTERVAL_S - 1
    assert set(health.faults()) == {"GPU-0"}


def test_xid_fault_stays_if_the_driver_reports_no_recovery_actions(nvml, clocked_health):
    health, times = clocked_health
    nvml.write(*TWO_GPUS, "xid 0 1 95", NO_RECOVERY)
    health.faults()

    times[0] += 100 * STATE_INTERVAL_S
    assert set(health.faults()) == {"GPU-0"}


def test_lost_gpu_that_responds_again_is_healthy(nvml, clocked_health):
    health, times = clocked_health
    nvml.write(*TWO_GPUS, f"fault 1 * {GPU_IS_LOST}")
    assert health.faults() == {"GPU-1": "the driver has lost it"}

    nvml.write(*TWO_GPUS)
    times[0] += STATE_INTERVAL_S
    assert health.faults() == {}


def test_driver_without_events_reports_faults_by_device_state(nvml):
    nvml.write(*TWO_GPUS, f"fault -1 nvmlEventSetCreate {NOT_SUPPORTED}", "xid 0 1 79", "rows 1")
    health = Health(open_gpus(None))

    assert health.faults() == {"GPU-1": "memory rows could not be remapped"}
    health.close()


def test_gpu_unresponsive_at_agent_start_has_a_fault_and_its_index(nvml):
    nvml.write(*TWO_GPUS, f"fault 0 * {GPU_IS_LOST}")
    source = open_devices()
    first, second = source.devices()
    poll = source.poll([])

    assert (first.index, second.index, second.uuid) == (0, 1, "GPU-1")
    assert first.fault.startswith("NVML says: ")
    assert poll.failed == {first.uuid}
    assert [bool(d.fault) for d in poll.devices] == [True, False]
    source.close()


def test_our_nvml_constants_equal_the_constants_of_the_binding():
    # The oldest supported release has no names for them.
    assert getattr(pynvml, "NVML_GPU_RECOVERY_ACTION_GPU_RESET", RESET) == RESET
    assert getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 230) == 230
