"""Sharing by MPS on the platform: real supervising processes, a fake daemon and driver."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runai.hub_service.cli.doctor.gpu_checks import check_mps_daemons
from runai.hub_service.limits.mps_supervisor import SupervisorState
from runai.hub_service.limits.sharing import MPS_LIMIT, MpsSharing, TimeSliced
from runai.hub_service.limits.tiers import MPS_IS_TRIED, NO_MPS_HERE

HERE = Path(__file__).parent
DEVICE = "GPU-11111111-2222-3333-4444-555555555555"
DEVICE_FOLDER = "555555555555"  # the end of the UUID, for short paths of sockets


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a short path: it contains sockets."""
    return tmp_path_factory.mktemp("m")


@pytest.fixture
def mps_programs(mps_control: Path, fake_cuda: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake MPS and driver; return the folder of programs."""
    programs = mps_control.parent
    shutil.copy(fake_cuda / "libcuda.so.1", programs)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(programs))
    return programs


@pytest.fixture
def sharing(folder: Path, mps_programs: Path, eventually) -> Iterator[MpsSharing]:
    mps_sharing = MpsSharing(folder, [DEVICE])
    yield mps_sharing
    mps_sharing.end()
    eventually(
        lambda: (
            SupervisorState.read(folder / DEVICE_FOLDER) is None
            or mps_sharing.unavailable_reason(DEVICE)
        )
    )


def supervisor_process(folder: Path) -> psutil.Process:
    state = SupervisorState.read(folder / DEVICE_FOLDER)
    assert state is not None
    return psutil.Process(state.pid)


@pytest.mark.cc
def test_worker_becomes_an_mps_client_once_its_limit_is_verified(
    sharing, folder, monkeypatch, eventually
):
    monkeypatch.setenv("RUNAI_HUB_TOKEN", "secret")
    assert sharing.variables(DEVICE, 4096) == {}  # the call does not wait for the daemon
    sharing.begin()

    variables = eventually(lambda: sharing.variables(DEVICE, 4096))

    assert variables[MPS_LIMIT] == "0=4096M"
    assert variables["CUDA_VISIBLE_DEVICES"] == DEVICE
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == str(folder / DEVICE_FOLDER / "pipe")
    assert sharing.unavailable_reason(DEVICE) == ""
    assert sharing.variables("GPU-another", 4096) == {}
    assert "secret" not in supervisor_process(folder).environ().values()  # the service's secret


@pytest.mark.cc
def test_restarted_service_adopts_the_running_mps_daemon(sharing, folder, eventually):
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))
    before = supervisor_process(folder).pid
    restarted = MpsSharing(folder, [DEVICE])

    restarted.begin()

    assert supervisor_process(folder).pid == before
    assert restarted.variables(DEVICE, 1024)[MPS_LIMIT] == "0=1024M"


@pytest.mark.cc
def test_end_of_mps_sharing_stops_supervisor_and_daemon(sharing, folder, eventually):
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))
    processes = [supervisor_process(folder), *supervisor_process(folder).children(recursive=True)]
    assert len(processes) > 1

    sharing.end()

    eventually(lambda: not any(_is_alive(process) for process in processes))
    assert sharing.variables(DEVICE, 4096) == {}
    assert not (folder / DEVICE_FOLDER / "state.json").exists()


@pytest.mark.cc
def test_killed_mps_supervisor_ends_its_daemon_and_is_restarted(sharing, folder, eventually):
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))
    supervisor = supervisor_process(folder)
    daemons = supervisor.children(recursive=True)
    supervisor.send_signal(signal.SIGKILL)

    eventually(lambda: sharing.variables(DEVICE, 4096) == {})
    assert sharing.unavailable_reason(DEVICE) == "its daemon does not run"
    eventually(lambda: not any(_is_alive(process) for process in daemons))
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.mark.cc
def test_doctor_reports_an_mps_daemon_that_does_not_answer(sharing, folder, eventually):
    assert [*check_mps_daemons(folder)] == []
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))

    (answers,) = check_mps_daemons(folder)
    (daemon,) = supervisor_process(folder).children()
    daemon.suspend()  # it exists, and its supervisor believes it ready
    try:
        (silent,) = check_mps_daemons(folder)
    finally:
        daemon.resume()

    assert answers[:3] == ("ok", "MPS", f"the control daemon of {DEVICE_FOLDER} answers")
    assert silent.verdict == "failure"
    assert silent.text.endswith("nvidia-cuda-mps-control does not answer to get_server_list")
    assert silent.mend.startswith(f"kill {supervisor_process(folder).pid} ends it")


@pytest.mark.cc
def test_device_reports_mps_on_trial_until_its_limit_is_verified(sharing, mps_programs, eventually):
    hold_file = mps_programs / "hold"
    control = mps_programs / "nvidia-cuda-mps-control"
    control.write_text(
        control.read_text().replace(
            "exec ", f"while [ -e {hold_file} ]; do sleep 0.02; done\nexec "
        )
    )
    hold_file.touch()
    sharing.begin()
    eventually(lambda: sharing.mps(DEVICE) == MPS_IS_TRIED)
    hold_file.unlink()

    eventually(lambda: sharing.variables(DEVICE, 4096))
    assert sharing.mps(DEVICE) == ""
    assert sharing.mps("MIG-another") == NO_MPS_HERE


@pytest.mark.cc
def test_mps_daemon_that_fails_to_start_is_the_reason_why_mps_is_unavailable(
    folder, mps_programs, eventually
):
    (mps_programs / "nvidia-cuda-mps-control").write_text("#!/bin/sh\necho no; exit 1\n")
    sharing = MpsSharing(folder, [DEVICE])
    sharing.begin()

    assert eventually(
        lambda: sharing.unavailable_reason(DEVICE).startswith("nvidia-cuda-mps-control did not")
    )
    assert sharing.variables(DEVICE, 4096) == {}


@pytest.mark.cc
def test_memory_limit_that_mps_does_not_enforce_makes_mps_unavailable(
    folder, mps_programs, eventually
):
    driver_source = (HERE / "fake_cuda.c").read_text().replace('!getenv("FAKE_CUDA_FORGETS")', "0")
    (mps_programs / "driver_source.c").write_text(driver_source)
    build = [
        "cc",
        "-shared",
        "-fPIC",
        "-o",
        mps_programs / "libcuda.so.1",
        mps_programs / "driver_source.c",
    ]
    subprocess.run(build, check=True)
    sharing = MpsSharing(folder, [DEVICE])
    sharing.begin()

    assert eventually(
        lambda: sharing.unavailable_reason(DEVICE) == "its limit is not kept on this machine"
    )
    assert sharing.variables(DEVICE, 4096) == {}


def test_refused_mps_sharing_starts_no_daemon(folder):
    sharing = MpsSharing(folder, [DEVICE], refused="users have accounts of their own")
    sharing.begin()

    assert sharing.unavailable_reason(DEVICE) == "users have accounts of their own"
    assert sharing.mps(DEVICE) == "users have accounts of their own"
    assert sharing.variables(DEVICE, 4096) == {}
    assert list(folder.iterdir()) == []


def test_time_slicing_is_available_and_sets_no_environment_variables():
    assert TimeSliced().variables(DEVICE, 4096) == {}
    assert TimeSliced().unavailable_reason(DEVICE) == ""
    assert TimeSliced().mps(DEVICE) is None
