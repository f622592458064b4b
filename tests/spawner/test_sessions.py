"""Sessions end to end: JupyterHub, spawner, service and processes, all real, one simulated GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hub_platform import HubPlatform
from kubernetes_hub import sentence
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.limits import HOOK
from runai.hub_service.processes.session_end import SessionProcesses
from runai.hub_service.processes.user_environment import FOLDER
from runai.spawner.local import RUNTIME
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(900)]

Eventually = Callable[..., Any]


def is_alive(pid: int) -> bool:
    """Return True if a process runs; in a container, an ended one may stay an unreaped zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_the_service(child: psutil.Process) -> bool:
    try:
        return "runai.hub_service" in child.cmdline()
    except psutil.Error:  # a previous server, which has ended
        return False


def test_two_half_gpu_sessions_share_a_device_and_a_third_waits(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.start_server("ana", project="vision", gpus="0.5")
    fresh.start_server("bo", project="vision", gpus=0.5)
    devices = {fresh.environment(user)["CUDA_VISIBLE_DEVICES"] for user in ("ana", "bo")}
    fresh.spawn("cy", project="vision", gpus="½").raise_for_status()
    with fresh.progress("cy") as events:
        eventually(lambda: sentence(events, "Waiting: "))
        waiting = [event["message"] for event in events[:3]]
        allocated = fresh.holds()
        fresh.stop_server("ana")
        fresh.wait_ready("cy")

    assert len(devices) == 1
    assert allocated == {"ana": 0.5, "bo": 0.5, "cy": 0}
    assert waiting[1:] == [
        "Asking vision for 0.5 GPUs",
        "Waiting: the build quota of vision is 1 GPU, and its notebooks hold 1: ana 0.5, bo 0.5",
    ]
    assert events[-1]["ready"]
    assert fresh.holds() == {"bo": 0.5, "cy": 0.5}
    environment = fresh.environment("cy")
    assert environment["CUDA_VISIBLE_DEVICES"] in devices
    assert environment["RUNAI_PROJECT"] == "vision"
    assert environment["RUNAI_WORKLOAD"] == "vision/lab-cy"
    port = (fresh.data_dir / "service.port").read_text()
    assert environment["RUNAI_API_URL"] == f"http://127.0.0.1:{port}/services/runai/"
    assert environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert environment["JUPYTERHUB_API_TOKEN"]
    assert "RUNAI_HUB_TOKEN" not in environment
    assert environment["PYTHONPATH"].startswith(HOOK)
    limit, device = (environment[f"RUNAI_GPU_{name}_MIB"] for name in ("MEMORY_LIMITS", "DEVICES"))
    assert int(limit) * 2 == int(device)


def test_cancelled_start_and_killed_session_leave_no_allocation(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.start_server("ana", project="vision", gpus="1")
    fresh.spawn("bo", project="vision", gpus="1").raise_for_status()
    with fresh.progress("bo") as events:
        eventually(lambda: sentence(events, "Waiting: "))
        fresh.stop_server("bo")
    eventually(lambda: fresh.holds() == {"ana": 1})
    assert events[-1] == {"progress": 100, "failed": True, "message": "The start was stopped."}

    killed = fresh.pid("ana")
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: not is_alive(killed))
    response = fresh.http.get("/user/ana/api")

    assert response.status_code in (424, 503)  # the hub may have noticed already
    assert ("Your server appears to be down." in response.text) == (response.status_code == 503)
    eventually(lambda: fresh.holds() == {})
    eventually(lambda: not fresh.server("ana"), what="the hub has noticed")


def test_session_without_gpu_sees_no_device_and_no_open_file_of_the_hub(
    fresh: HubPlatform,
):
    """A session without a project is no workload."""

    def open_files(pid: int) -> set[str]:
        links = set()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                links.add(str(descriptor.readlink()))
        return {link for link in links if not link.startswith("anon_inode:")}  # all have one name

    log, home = DataDirectory(fresh.data_dir).hub_log, DataDirectory(fresh.data_dir).users / "ana"
    before = log.stat().st_size
    fresh.start_server("ana", gpus="0")
    assert fresh.process is not None

    assert fresh.environment("ana")["CUDA_VISIBLE_DEVICES"] == ""
    assert fresh.environment("ana")["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert fresh.environment("ana")["VIRTUAL_ENV"] == str(home / FOLDER)
    kernels = Path(fresh.environment("ana")["JUPYTER_PATH"].split(":")[0], "kernels")
    spec = json.loads((kernels / "python3/kernel.json").read_text())
    assert spec["argv"][0] == str(home / FOLDER / "bin/python")
    assert fresh.sessions() == {}
    assert open_files(fresh.pid("ana")) & open_files(fresh.process.pid) <= {"/dev/null"}
    output = (home / ".local/share/runai/lab-ana.log").read_bytes()
    assert b" ServerApp]" in output  # its log lines; the hub notes its command line
    assert b" ServerApp]" not in log.read_bytes()[before:]


def test_spawn_refused_by_the_gpu_service_returns_the_reason_and_starts_no_server(
    fresh: HubPlatform,
):
    refused = fresh.spawn("ana", project="vision", gpus=2)

    assert refused.status_code == 400
    assert "its build quota is 1" in refused.json()["message"]
    assert fresh.server("ana") == {}
    assert fresh.sessions() == {}


@pytest.mark.parametrize("gpus", ["0.5", "0"], ids=["with a GPU", "without"])
def test_server_that_ends_before_it_answers_fails_with_its_last_lines(
    fresh: HubPlatform, eventually: Eventually, gpus
):
    """A folder stands where Jupyter needs a file; the next start, without it, succeeds."""
    log = DataDirectory(fresh.data_dir).hub_log
    before = log.stat().st_size
    secret = DataDirectory(fresh.data_dir).users / "ana" / RUNTIME / "jupyter_cookie_secret"
    fresh.start_server("ana", gpus="0")  # makes the home
    fresh.stop_server("ana")
    secret.unlink()
    secret.mkdir()
    try:
        answer = fresh.spawn("ana", project="vision", gpus=gpus)
        if answer.status_code == 202:  # else it has failed within the answer's second
            with fresh.progress("ana") as events:
                eventually(lambda: events and events[-1].get("failed"))
            message = events[-1]["message"]
            assert "<pre" in events[-1]["html_message"]
        else:
            assert answer.status_code == 400
            message = answer.json()["message"]
        with fresh.browser("ana") as browser:
            assert "Start without my settings" in browser.get("/hub/spawn").text
        fresh.start_server("ana", gpus="0", settings="without")
        assert "settings" not in fresh.server("ana")["user_options"]
        fresh.stop_server("ana")
    finally:
        secret.rmdir()

    assert "Your server ended before it answered (exit code 1). Its last lines:\n" in message
    assert "Is a directory" in message
    eventually(lambda: fresh.holds() == {})
    logged = log.read_bytes()[before:].decode()
    assert "Your server ended before it answered (exit code 1)." in logged
    assert message.splitlines()[-2] not in logged
    fresh.start_server("ana", gpus="0")


def test_server_with_an_unusable_home_is_refused_before_a_gpu_request(fresh: HubPlatform):
    home = DataDirectory(fresh.data_dir).users / "bo"
    fresh.start_server("bo", gpus="0")  # makes the home
    fresh.stop_server("bo")
    (home / ".local").rename(home / "aside")
    (home / ".local").touch()
    try:
        answer = fresh.spawn("bo", project="vision", gpus="0.5")
        if answer.status_code == 202:  # else it has failed within the answer's second
            with fresh.progress("bo") as events:
                eventually(lambda: events and events[-1].get("failed"))
            message = events[-1]["message"]
        else:
            message = answer.json()["message"]
        fresh.start_server("bo", gpus="0", settings="without")
        fresh.stop_server("bo")
    finally:
        (home / ".local").unlink()
        (home / "aside").rename(home / ".local")

    assert f"Your server cannot start: {home}/.local is a file, not a folder." in message
    assert "Start without my settings" in message


def _start_detached_program(platform: HubPlatform, user: str) -> psutil.Process:
    """Start a program in a session of its own from a user's notebook server."""
    program = subprocess.Popen(
        ["setsid", "--fork", "sleep", "3600"], env=platform.environment(user), cwd="/"
    )
    assert program.wait() == 0
    session_id = platform.environment(user)["RUNAI_SESSION_ID"]

    def sleep_processes() -> list[psutil.Process]:
        session = SessionProcesses(session_id, 0, os.geteuid())
        return [process for process in session.find() if process.name() == "sleep"]

    return eventually(sleep_processes)[0]


@pytest.mark.parametrize("how", ["stop", "crash"])
@pytest.mark.parametrize(
    "options", [{"project": "vision", "gpus": "0.5"}, {"gpus": "0"}], ids=["workload", "none"]
)
def test_session_end_kills_programs_detached_from_its_process_tree(
    fresh: HubPlatform, eventually: Eventually, options, how
):
    fresh.start_server("ana", **options)
    fresh.start_server("bo", gpus="0")
    program, other = _start_detached_program(fresh, "ana"), _start_detached_program(fresh, "bo")

    if how == "stop":
        fresh.stop_server("ana")
    else:
        os.kill(fresh.pid("ana"), signal.SIGKILL)

    eventually(lambda: not is_alive(program.pid))
    eventually(lambda: fresh.holds() == {})
    assert is_alive(other.pid)


def test_spawn_form_displays_the_error_of_an_invalid_choice(fresh: HubPlatform):
    with fresh.browser("ana") as browser:
        form = browser.get("/hub/spawn")
        choice = {"project": "vision", "gpus": "other", "amount": "1.5"}
        refused = browser.post("/hub/spawn", data=choice)
        wrong = browser.post("/hub/spawn", data={**choice, "project": "nope", "amount": "0.5"})
        again = browser.get("/hub/spawn", params={"_xsrf": "a page that is loaded again"})

    assert "vision</span>" in form.text
    assert "free now" in form.text
    assert "above one GPU only whole ones are." in refused.text
    assert "There is no project nope." in wrong.text
    assert "Nothing was chosen." in again.text
    assert fresh.server("ana") == {}
    assert fresh.sessions() == {}


def test_spawner_and_service_log_the_same_request_id(fresh: HubPlatform, eventually: Eventually):
    log = DataDirectory(fresh.data_dir).hub_log
    before = log.stat().st_size

    def request_ids(text: str) -> list[str]:
        """Return the ids in later log lines with this text."""
        lines = log.read_bytes()[before:].decode().splitlines()
        return [line.rpartition("[")[2].rstrip("]") for line in lines if text in line]

    fresh.start_server("ana", project="vision", gpus="0.5")
    fresh.stop_server("ana")

    (start,) = request_ids("ana: asking the GPU service for 0.5 GPUs in vision")
    (stop,) = request_ids("ana: asking the GPU service for an end of vision/")
    assert start != stop
    assert request_ids("POST '/services/runai/api/v1/workloads' 201") == [start]
    assert request_ids("/process' 2") == [start]
    eventually(lambda: request_ids("DELETE '/services/runai/api/v1/workloads/vision/") == [stop])


def test_session_allocations_are_unchanged_by_kills_of_hub_and_service(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.start_server("ana", project="vision", gpus="0.5")
    assert fresh.process is not None
    [service] = filter(is_the_service, psutil.Process(fresh.process.pid).children())
    service.kill()
    fresh.start_server("bo", project="vision", gpus="0.5")  # waits for the next service
    ana, bo, program = fresh.pid("ana"), fresh.pid("bo"), _start_detached_program(fresh, "ana")
    assert fresh.holds() == {"ana": 0.5, "bo": 0.5}

    fresh.kill()
    os.kill(bo, signal.SIGKILL)  # while no hub runs
    fresh.start()
    eventually(lambda: fresh.server("ana").get("ready"), within=120)
    eventually(lambda: not fresh.server("bo"), within=120)
    eventually(lambda: fresh.holds() == {"ana": 0.5}, within=120)
    assert fresh.pid("ana") == ana
    assert is_alive(program.pid)

    fresh.stop_server("ana")
    eventually(lambda: fresh.sessions() == {})
    assert not is_alive(ana)
    assert not is_alive(program.pid)


def test_starting_server_is_adopted_after_its_hub_is_killed(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.spawn("ana", project="vision", gpus="0.5").raise_for_status()
    eventually(lambda: fresh.holds() == {"ana": 0.5} and _is_attached(fresh))
    fresh.kill()
    ana = fresh.pid("ana")

    fresh.start()

    eventually(lambda: fresh.server("ana").get("ready"), within=180)
    assert fresh.pid("ana") == ana
    assert fresh.holds() == {"ana": 0.5}


def _is_attached(platform: HubPlatform) -> bool:
    """Return True once the server's process runs, which takes seconds to answer."""
    return {session.state for session in platform.sessions().values()} == {"running"}
