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
from starts import has_exited
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(900)]

Eventually = Callable[..., Any]


def test_two_half_gpu_sessions_share_a_device_and_a_third_waits(
    platform: HubPlatform, eventually: Eventually
):
    platform.start_server("ana", project="vision", gpus="0.5")
    platform.start_server("bo", project="vision", gpus=0.5)
    devices = {platform.environment(user)["CUDA_VISIBLE_DEVICES"] for user in ("ana", "bo")}
    platform.spawn("cy", project="vision", gpus="½").raise_for_status()
    with platform.progress("cy") as events:
        eventually(lambda: sentence(events, "Waiting: "))
        waiting = [event["message"] for event in events[:3]]
        allocated = platform.holds()
        platform.stop_server("ana")
        platform.wait_ready("cy")

    assert len(devices) == 1
    assert allocated == {"ana": 0.5, "bo": 0.5, "cy": 0}
    assert waiting[1:] == [
        "Asking vision for 0.5 GPUs",
        "Waiting: the build quota of vision is 1 GPU, and its notebooks hold 1: ana 0.5, bo 0.5",
    ]
    assert events[-1]["ready"]
    assert platform.holds() == {"bo": 0.5, "cy": 0.5}
    environment = platform.environment("cy")
    assert environment["CUDA_VISIBLE_DEVICES"] in devices
    assert environment["RUNAI_PROJECT"] == "vision"
    assert environment["RUNAI_WORKLOAD"] == "vision/lab-cy"
    port = (platform.data_dir / "service.port").read_text()
    assert environment["RUNAI_API_URL"] == f"http://127.0.0.1:{port}/services/runai/"
    assert environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert environment["JUPYTERHUB_API_TOKEN"]
    assert "RUNAI_HUB_TOKEN" not in environment
    assert environment["PYTHONPATH"].startswith(HOOK)
    limit, device = (environment[f"RUNAI_GPU_{name}_MIB"] for name in ("MEMORY_LIMITS", "DEVICES"))
    assert int(limit) * 2 == int(device)


def test_cancelled_start_and_killed_session_leave_no_allocation(
    platform: HubPlatform, eventually: Eventually
):
    platform.start_server("ana", project="vision", gpus="1")
    platform.spawn("bo", project="vision", gpus="1").raise_for_status()
    with platform.progress("bo") as events:
        eventually(lambda: sentence(events, "Waiting: "))
        platform.stop_server("bo")
    eventually(lambda: platform.holds() == {"ana": 1})
    assert events[-1] == {"progress": 100, "failed": True, "message": "The start was stopped."}

    killed = platform.pid("ana")
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: has_exited(killed))
    response = platform.http.get("/user/ana/api")

    assert response.status_code in (424, 503)  # the hub may have noticed already
    assert ("Your server appears to be down." in response.text) == (response.status_code == 503)
    eventually(lambda: platform.holds() == {})
    eventually(lambda: not platform.server("ana"), what="the hub has noticed")


def test_session_without_gpu_sees_no_device_and_no_open_file_of_the_hub(
    platform: HubPlatform,
):
    """A session without a project is no workload."""

    def open_files(pid: int) -> set[str]:
        links = set()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                links.add(str(descriptor.readlink()))
        return {link for link in links if not link.startswith("anon_inode:")}  # all have one name

    data = DataDirectory(platform.data_dir)
    log, home = data.hub_log, data.users / "ana"
    log_size = log.stat().st_size
    platform.start_server("ana", gpus="0")

    assert platform.environment("ana")["CUDA_VISIBLE_DEVICES"] == ""
    assert platform.environment("ana")["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert platform.environment("ana")["VIRTUAL_ENV"] == str(home / FOLDER)
    kernels = Path(platform.environment("ana")["JUPYTER_PATH"].split(":")[0], "kernels")
    spec = json.loads((kernels / "python3/kernel.json").read_text())
    assert spec["argv"][0] == str(home / FOLDER / "bin/python")
    assert platform.sessions() == {}
    assert open_files(platform.pid("ana")) & open_files(platform.running.pid) <= {"/dev/null"}
    output = (home / ".local/share/runai/lab-ana.log").read_bytes()
    assert b" ServerApp]" in output  # its log lines; the hub notes its command line
    assert b" ServerApp]" not in log.read_bytes()[log_size:]


def test_spawn_refused_by_the_gpu_service_returns_the_reason_and_starts_no_server(
    platform: HubPlatform,
):
    refused = platform.spawn("ana", project="vision", gpus=2)

    assert refused.status_code == 400
    assert "its build quota is 1" in refused.json()["message"]
    assert platform.server("ana") == {}
    assert platform.sessions() == {}


@pytest.mark.parametrize("gpus", ["0.5", "0"], ids=["with a GPU", "without a GPU"])
def test_server_that_ends_before_it_answers_fails_with_its_last_lines(
    platform: HubPlatform, eventually: Eventually, gpus
):
    """A folder stands where Jupyter needs a file; the next start, without it, succeeds."""
    data = DataDirectory(platform.data_dir)
    log_size = data.hub_log.stat().st_size
    cookie_secret = data.users / "ana" / RUNTIME / "jupyter_cookie_secret"
    platform.start_server("ana", gpus="0")  # makes the home
    platform.stop_server("ana")
    cookie_secret.unlink()
    cookie_secret.mkdir()
    try:
        reply = platform.spawn("ana", project="vision", gpus=gpus)
        if reply.status_code == 202:  # else it has failed within the answer's second
            with platform.progress("ana") as events:
                eventually(lambda: events and events[-1].get("failed"))
            message = events[-1]["message"]
            assert "<pre" in events[-1]["html_message"]
        else:
            assert reply.status_code == 400
            message = reply.json()["message"]
        with platform.browser("ana") as browser:
            assert "Start without my settings" in browser.get("/hub/spawn").text
        platform.start_server("ana", gpus="0", settings="without")
        assert "settings" not in platform.server("ana")["user_options"]
        platform.stop_server("ana")
    finally:
        cookie_secret.rmdir()

    assert "Your server ended before it answered (exit code 1). Its last lines:\n" in message
    assert "Is a directory" in message
    eventually(lambda: platform.holds() == {})
    new_log = data.hub_log.read_bytes()[log_size:].decode()
    assert "Your server ended before it answered (exit code 1)." in new_log
    assert message.splitlines()[-2] not in new_log
    platform.start_server("ana", gpus="0")


def test_server_with_an_unusable_home_is_refused_before_a_gpu_request(platform: HubPlatform):
    home = DataDirectory(platform.data_dir).users / "bo"
    platform.start_server("bo", gpus="0")  # makes the home
    platform.stop_server("bo")
    (home / ".local").rename(home / "aside")
    (home / ".local").touch()
    try:
        reply = platform.spawn("bo", project="vision", gpus="0.5")
        if reply.status_code == 202:  # else it has failed within the answer's second
            with platform.progress("bo") as events:
                eventually(lambda: events and events[-1].get("failed"))
            message = events[-1]["message"]
        else:
            message = reply.json()["message"]
        platform.start_server("bo", gpus="0", settings="without")
        platform.stop_server("bo")
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


@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize(
    "options", [{"project": "vision", "gpus": "0.5"}, {"gpus": "0"}], ids=["GPU", "no project"]
)
def test_session_end_kills_programs_detached_from_its_process_tree(
    platform: HubPlatform, eventually: Eventually, options, end
):
    platform.start_server("ana", **options)
    platform.start_server("bo", gpus="0")
    program = _start_detached_program(platform, "ana")
    program_of_bo = _start_detached_program(platform, "bo")

    if end == "stop":
        platform.stop_server("ana")
    else:
        os.kill(platform.pid("ana"), signal.SIGKILL)

    eventually(lambda: has_exited(program.pid))
    eventually(lambda: platform.holds() == {})
    assert not has_exited(program_of_bo.pid)


def test_spawn_form_displays_the_error_of_an_invalid_choice(platform: HubPlatform):
    with platform.browser("ana") as browser:
        form = browser.get("/hub/spawn")
        choice = {"project": "vision", "gpus": "other", "amount": "1.5"}
        invalid_amount = browser.post("/hub/spawn", data=choice)
        choice |= {"project": "nope", "amount": "0.5"}
        unknown_project = browser.post("/hub/spawn", data=choice)
        expired_form = browser.get("/hub/spawn", params={"_xsrf": "a page that is loaded again"})

    assert "vision</span>" in form.text
    assert "free now" in form.text
    assert "above one GPU only whole ones are." in invalid_amount.text
    assert "There is no project nope." in unknown_project.text
    assert "Nothing was chosen." in expired_form.text
    assert platform.server("ana") == {}
    assert platform.sessions() == {}


def test_spawner_and_service_log_the_same_request_id(platform: HubPlatform, eventually: Eventually):
    log = DataDirectory(platform.data_dir).hub_log
    log_size = log.stat().st_size

    def request_ids(text: str) -> list[str]:
        """Return the ids in later log lines with this text."""
        lines = log.read_bytes()[log_size:].decode().splitlines()
        return [line.rpartition("[")[2].rstrip("]") for line in lines if text in line]

    platform.start_server("ana", project="vision", gpus="0.5")
    platform.stop_server("ana")

    (start,) = request_ids("ana: asking the GPU service for 0.5 GPUs in vision")
    (stop,) = request_ids("ana: asking the GPU service for an end of vision/")
    assert start != stop
    assert request_ids("POST '/services/runai/api/v1/workloads' 201") == [start]
    assert request_ids("/process' 2") == [start]
    eventually(lambda: request_ids("DELETE '/services/runai/api/v1/workloads/vision/") == [stop])


def test_session_allocations_are_unchanged_by_kills_of_hub_and_service(
    platform: HubPlatform, eventually: Eventually
):
    platform.start_server("ana", project="vision", gpus="0.5")
    platform.service_process().kill()
    platform.start_server("bo", project="vision", gpus="0.5")  # waits for the next service
    ana, bo = platform.pid("ana"), platform.pid("bo")
    program = _start_detached_program(platform, "ana")
    assert platform.holds() == {"ana": 0.5, "bo": 0.5}

    platform.kill()
    os.kill(bo, signal.SIGKILL)  # while no hub runs
    platform.start()
    eventually(lambda: platform.server("ana").get("ready"), within=120)
    eventually(lambda: not platform.server("bo"), within=120)
    eventually(lambda: platform.holds() == {"ana": 0.5}, within=120)
    assert platform.pid("ana") == ana
    assert not has_exited(program.pid)

    platform.stop_server("ana")
    eventually(lambda: platform.sessions() == {})
    assert has_exited(ana)
    assert has_exited(program.pid)


def test_starting_server_is_adopted_after_its_hub_is_killed(
    platform: HubPlatform, eventually: Eventually
):
    platform.spawn("ana", project="vision", gpus="0.5").raise_for_status()
    eventually(lambda: platform.holds() == {"ana": 0.5} and _is_attached(platform))
    platform.kill()
    ana = platform.pid("ana")

    platform.start()

    eventually(lambda: platform.server("ana").get("ready"), within=180)
    assert platform.pid("ana") == ana
    assert platform.holds() == {"ana": 0.5}


def _is_attached(platform: HubPlatform) -> bool:
    """Return True once the server's process runs, which takes seconds to answer."""
    return {session.state for session in platform.sessions().values()} == {"running"}
