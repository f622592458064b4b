"""The daemon of one device's MPS, and the canary that tests its limit, without a GPU.

The control program and the CUDA driver are fakes with the real commands and calls;
`benchmarks/gpu_sharing.py --part 3` measures the real ones.
"""

from __future__ import annotations

import pytest

from runai.hub_service.limits.memory_probe import try_limit
from runai.hub_service.limits.mps_daemon import MpsDaemon, MpsUnavailable

DEVICE = "GPU-aaaa"


@pytest.fixture
def program(mps_control):
    """Return the command line of the control program."""
    return str(mps_control)


@pytest.fixture
def daemon(tmp_path, program):
    """Return a running daemon; stop it at the end of the test."""
    with MpsDaemon(DEVICE, tmp_path / "mps", program=program, patience_s=60.0) as started:
        yield started


def test_mps_daemon_serves_only_its_device(daemon):
    assert daemon.command("get_server_list") == DEVICE


def test_limit_clients_sets_the_default_memory_limit_of_the_daemon(daemon):
    daemon.limit_clients(10_240)

    assert daemon.command("get_default_device_pinned_mem_limit 0") == "10240M"


def test_mps_client_environment_has_device_limits_and_folders(daemon, tmp_path):
    environment = daemon.client_environment(memory_mib=20_480, thread_percentage=50)

    assert environment == {
        "CUDA_VISIBLE_DEVICES": DEVICE,
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps" / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "mps" / "log"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    }


def test_refused_mps_command_raises_the_message_of_the_daemon(daemon):
    with pytest.raises(MpsUnavailable, match="refused dance: unknown command dance"):
        daemon.command("dance")


def test_mps_daemon_accepts_a_second_start_and_a_second_stop(daemon):
    daemon.start()
    daemon.stop()
    daemon.stop()

    assert not daemon.is_running
    with pytest.raises(MpsUnavailable, match=f"does not run for {DEVICE}"):
        daemon.command("get_server_list")


def test_mps_daemon_starts_in_the_folder_of_a_killed_daemon(tmp_path, program):
    (tmp_path / "mps" / "pipe").mkdir(parents=True)
    (tmp_path / "mps" / "pipe" / "control").touch()

    with MpsDaemon(DEVICE, tmp_path / "mps", program=program, patience_s=60.0) as daemon:
        assert daemon.command("get_server_list") == DEVICE


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        pytest.param("broken", "did not start: Cannot find MPS control daemon", id="ends at once"),
        pytest.param("deaf", "did not start: no answer within", id="is never ready"),
    ],
)
def test_mps_daemon_that_fails_to_start_raises_an_error_with_its_output(
    tmp_path, program, monkeypatch, mode, sentence
):
    monkeypatch.setenv("FAKE_MPS", mode)
    patience_s = 0.5 if mode == "deaf" else 30.0
    daemon = MpsDaemon(DEVICE, tmp_path / "mps", program=program, patience_s=patience_s)

    with pytest.raises(MpsUnavailable, match=sentence):
        daemon.start()
    assert not daemon.is_running


def test_mps_daemon_that_does_not_answer_is_unhealthy(tmp_path, program, monkeypatch):
    monkeypatch.setenv("FAKE_MPS", "mute")
    folder = tmp_path / "mps"
    hasty = MpsDaemon(DEVICE, folder, program=program, patience_s=0.5)

    with MpsDaemon(DEVICE, folder, program=program, patience_s=60.0):
        assert hasty.unhealthy_reason() == f"{program} does not answer to get_server_list"


def test_mps_daemon_without_the_control_program_is_unavailable(tmp_path):
    daemon = MpsDaemon(DEVICE, tmp_path, program="no-such-program")

    with pytest.raises(MpsUnavailable, match="no-such-program is not installed"):
        daemon.start()


def test_mps_daemon_folder_too_deep_for_sockets_is_refused(tmp_path):
    with pytest.raises(MpsUnavailable, match="too long a path"):
        MpsDaemon(DEVICE, tmp_path / ("deep" * 30))


@pytest.mark.cc
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, ("refused", ""), id="enforced limit"),
        pytest.param({"FAKE_CUDA_FORGETS": "1"}, ("allowed", ""), id="ignored limit"),
        pytest.param({"FAKE_CUDA_INIT": "100"}, ("unknown", "cuInit answered 100"), id="no device"),
        pytest.param(
            {"FAKE_CUDA_INIT": "805"}, ("unknown", "cuInit answered 805"), id="no MPS daemon"
        ),
    ],
)
def test_mps_canary_reports_whether_a_memory_limit_is_enforced(fake_cuda, environment, expected):
    client = {"LD_LIBRARY_PATH": str(fake_cuda), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1024M"}

    assert try_limit(1024, client | environment) == expected
