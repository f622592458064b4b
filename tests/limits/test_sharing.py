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
from runai.hub_service.limits.mps_keeper import SupervisorState
from runai.hub_service.limits.sharing import MPS_LIMIT, MpsSharing, TimeSliced
from runai.hub_service.limits.tiers import MPS_IS_TRIED, NO_MPS_HERE

HERE = Path(__file__).parent
DEVICE = "GPU-11111111-2222-3333-4444-555555555555"
END = "555555555555"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a short path: it contains sockets."""
    return tmp_path_factory.mktemp("m")


@pytest.fixture
def machine(mps_control: Path, fake_cuda: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake MPS and driver; return the folder of programs."""
    programs = mps_control.parent
    shutil.copy(fake_cuda / "libcuda.so.1", programs)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(programs))
    return programs


@pytest.fixture
def sharing(folder: Path, machine: Path, eventually) -> Iterator[MpsSharing]:
    made = MpsSharing(folder, [DEVICE])
    yield made
    made.end()
    eventually(
        lambda: SupervisorState.read(folder / END) is None or made.unavailable_reason(DEVICE)
    )


def keeper(folder: Path) -> psutil.Process:
    state = SupervisorState.read(folder / END)
    assert state is not None
    return psutil.Process(state.pid)


@pytest.mark.cc
def test_a_worker_becomes_a_client_once_the_limit_was_seen_to_hold(
    sharing, folder, monkeypatch, eventually
):
    monkeypatch.setenv("RUNAI_HUB_TOKEN", "secret")
    assert sharing.variables(DEVICE, 4096) == {}  # the call does not wait for the daemon
    sharing.begin()

    variables = eventually(lambda: sharing.variables(DEVICE, 4096))

    assert variables[MPS_LIMIT] == "0=4096M"
    assert variables["CUDA_VISIBLE_DEVICES"] == DEVICE
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == str(folder / END / "pipe")
    assert sharing.unavailable_reason(DEVICE) == ""
    assert sharing.variables("GPU-another", 4096) == {}
    assert "secret" not in keeper(folder).environ().values()  # the service's secret


@pytest.mark.cc
def test_the_next_service_finds_the_daemon_that_runs(sharing, folder, eventually):
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))
    before = keeper(folder).pid
    following = MpsSharing(folder, [DEVICE])

    following.begin()

    assert keeper(folder).pid == before
    assert following.variables(DEVICE, 1024)[MPS_LIMIT] == "0=1024M"


@pytest.mark.cc
def test_ending_takes_the_daemon_along(sharing, folder, eventually):
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))
    family = [keeper(folder), *keeper(folder).children(recursive=True)]
    assert len(family) > 1

    sharing.end()

    eventually(lambda: not any(_lives(process) for process in family))
    assert sharing.variables(DEVICE, 4096) == {}
    assert not (folder / END / "state.json").exists()


@pytest.mark.cc
def test_a_keeper_that_was_killed_takes_the_daemon_along_and_is_started_again(
    sharing, folder, eventually
):
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))
    killed = keeper(folder)
    daemons = killed.children(recursive=True)
    killed.send_signal(signal.SIGKILL)

    eventually(lambda: sharing.variables(DEVICE, 4096) == {})
    assert sharing.unavailable_reason(DEVICE) == "its daemon does not run"
    eventually(lambda: not any(_lives(process) for process in daemons))
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.mark.cc
def test_doctor_asks_the_daemon_itself(sharing, folder, eventually):
    assert [*check_mps_daemons(folder)] == []
    sharing.begin()
    eventually(lambda: sharing.variables(DEVICE, 4096))

    (answers,) = check_mps_daemons(folder)
    (daemon,) = keeper(folder).children()
    daemon.suspend()  # it exists, and its supervisor believes it ready
    try:
        (silent,) = check_mps_daemons(folder)
    finally:
        daemon.resume()

    assert answers[:3] == ("ok", "MPS", f"the control daemon of {END} answers")
    assert silent.verdict == "failure"
    assert silent.text.endswith("nvidia-cuda-mps-control does not answer to get_server_list")
    assert silent.mend.startswith(f"kill {keeper(folder).pid} ends it")


@pytest.mark.cc
def test_a_device_is_told_as_tried_until_its_limit_was_seen_to_hold(sharing, machine, eventually):
    hold = machine / "hold"
    control = machine / "nvidia-cuda-mps-control"
    control.write_text(
        control.read_text().replace("exec ", f"while [ -e {hold} ]; do sleep 0.02; done\nexec ")
    )
    hold.touch()
    sharing.begin()
    eventually(lambda: sharing.mps(DEVICE) == MPS_IS_TRIED)
    hold.unlink()

    eventually(lambda: sharing.variables(DEVICE, 4096))
    assert sharing.mps(DEVICE) == ""
    assert sharing.mps("MIG-another") == NO_MPS_HERE


@pytest.mark.cc
def test_a_daemon_that_does_not_start_is_said(folder, machine, eventually):
    (machine / "nvidia-cuda-mps-control").write_text("#!/bin/sh\necho no; exit 1\n")
    sharing = MpsSharing(folder, [DEVICE])
    sharing.begin()

    assert eventually(
        lambda: sharing.unavailable_reason(DEVICE).startswith("nvidia-cuda-mps-control did not")
    )
    assert sharing.variables(DEVICE, 4096) == {}


@pytest.mark.cc
def test_a_limit_that_is_not_kept_is_not_advertised(folder, machine, eventually):
    forgets = (HERE / "fake_cuda.c").read_text().replace('!getenv("FAKE_CUDA_FORGETS")', "0")
    (machine / "forgets.c").write_text(forgets)
    build = ["cc", "-shared", "-fPIC", "-o", machine / "libcuda.so.1", machine / "forgets.c"]
    subprocess.run(build, check=True)
    sharing = MpsSharing(folder, [DEVICE])
    sharing.begin()

    assert eventually(
        lambda: sharing.unavailable_reason(DEVICE) == "its limit is not kept on this machine"
    )
    assert sharing.variables(DEVICE, 4096) == {}


def test_where_it_was_refused_nothing_is_started(folder):
    sharing = MpsSharing(folder, [DEVICE], refused="users have accounts of their own")
    sharing.begin()

    assert sharing.unavailable_reason(DEVICE) == "users have accounts of their own"
    assert sharing.mps(DEVICE) == "users have accounts of their own"
    assert sharing.variables(DEVICE, 4096) == {}
    assert list(folder.iterdir()) == []


def test_time_slicing_needs_nothing():
    assert (TimeSliced().variables(DEVICE, 4096), TimeSliced().unavailable_reason(DEVICE)) == (
        {},
        "",
    )
    assert TimeSliced().mps(DEVICE) is None
