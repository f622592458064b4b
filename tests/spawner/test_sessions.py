"""Sessions end to end: JupyterHub, spawner, service and processes, all real, one simulated GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from hub_platform import HubPlatform

pytestmark = [pytest.mark.hub, pytest.mark.xdist_group("hub"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]


def environment_of(platform: HubPlatform, user: str) -> dict[str, str]:
    return psutil.Process(platform.pid(user)).environ()


def test_two_halves_share_a_device_and_a_third_waits_until_one_stops(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.start_server("ana", project="vision", gpus="0.5")
    fresh.start_server("bo", project="vision", gpus=0.5)
    devices = {environment_of(fresh, user)["CUDA_VISIBLE_DEVICES"] for user in ("ana", "bo")}
    fresh.spawn("cy", project="vision", gpus="½").raise_for_status()
    with fresh.progress("cy") as events:
        eventually(lambda: len(events) >= 3)
        waiting = [event["message"] for event in events]
        held = fresh.holds()
        fresh.stop_server("ana")
        fresh.wait_ready("cy")

    assert len(devices) == 1
    assert held == {"ana": 0.5, "bo": 0.5, "cy": 0}
    assert waiting[1:] == [
        "Asking vision for 0.5 GPUs",
        "Waiting: vision uses 1 of its 1 build GPU: ana 0.5, bo 0.5",
    ]
    assert events[-1]["ready"]
    assert fresh.holds() == {"bo": 0.5, "cy": 0.5}
    assert environment_of(fresh, "cy")["CUDA_VISIBLE_DEVICES"] in devices


def test_a_session_that_is_stopped_gives_its_gpu_back(fresh: HubPlatform, eventually: Eventually):
    fresh.start_server("ana", project="vision", gpus="1")
    held = fresh.holds()
    fresh.stop_server("ana")

    assert held == {"ana": 1}
    eventually(lambda: fresh.sessions() == {})


def test_a_session_whose_process_is_killed_gives_its_gpu_back(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.start_server("ana", project="vision", gpus="1")
    os.kill(fresh.pid("ana"), signal.SIGKILL)

    eventually(lambda: fresh.holds() == {})
    eventually(lambda: not fresh.server("ana"), what="the hub has noticed")
    fresh.start_server("ana", project="vision", gpus="1")
    assert fresh.holds() == {"ana": 1}


def test_a_start_that_is_cancelled_leaves_nothing(fresh: HubPlatform, eventually: Eventually):
    fresh.start_server("ana", project="vision", gpus="1")
    fresh.spawn("bo", project="vision", gpus="1").raise_for_status()
    eventually(lambda: "bo" in fresh.sessions())
    fresh.stop_server("bo")

    eventually(lambda: fresh.holds() == {"ana": 1})


def test_a_session_without_a_gpu_sees_none(fresh: HubPlatform):
    fresh.start_server("ana", project="vision")
    fresh.start_server("bo")
    seen = [environment_of(fresh, user)["CUDA_VISIBLE_DEVICES"] for user in ("ana", "bo")]

    assert seen == ["", ""]
    assert fresh.holds() == {"ana": 0}


def test_the_environment_names_project_and_service(fresh: HubPlatform):
    fresh.start_server("ana", project="vision", gpus="0.5")
    environment = environment_of(fresh, "ana")

    assert environment["RUNAI_PROJECT"] == "vision"
    assert environment["RUNAI_WORKLOAD"] == "vision/lab-ana"
    assert environment["RUNAI_API_URL"] == f"{fresh.http.base_url}/services/runai/"
    assert environment["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert environment["JUPYTERHUB_API_TOKEN"]
    assert "RUNAI_HUB_TOKEN" not in environment


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param({"project": "nope", "gpus": 1}, "There is no project nope.", id="project"),
        pytest.param({"project": "vision", "gpus": 1.5}, "'1.5' GPUs are not possible", id="1.5"),
        pytest.param({"project": "vision", "gpus": -1}, "'-1' is no amount of GPU.", id="-1"),
        pytest.param(
            {"project": "vision", "gpus": 2}, "its build quota is 1", id="more than the quota"
        ),
        pytest.param({"gpus": 1}, "1 GPU cannot be had without a project.", id="no project"),
        pytest.param({"image": "x"}, "There is no option 'image'.", id="unknown option"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    fresh: HubPlatform, options: dict[str, object], sentence: str
):
    refused = fresh.spawn("ana", **options)

    assert refused.status_code == 400
    assert sentence in refused.json()["message"]
    assert fresh.server("ana") == {}
    assert fresh.sessions() == {}


def test_a_hub_that_is_killed_finds_its_sessions_again(fresh: HubPlatform, eventually: Eventually):
    fresh.start_server("ana", project="vision", gpus="0.5")
    pid = fresh.pid("ana")
    fresh.kill()
    fresh.start()
    eventually(lambda: fresh.server("ana").get("ready"), within=60)
    found = fresh.pid("ana")
    held = fresh.holds()
    fresh.stop_server("ana")

    assert (found, held) == (pid, {"ana": 0.5})
    eventually(lambda: fresh.sessions() == {})
    assert not psutil.pid_exists(pid)


def test_a_session_that_died_while_no_hub_ran_gives_its_gpu_back(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.start_server("ana", project="vision", gpus="1")
    pid = fresh.pid("ana")
    fresh.kill()
    os.kill(pid, signal.SIGKILL)
    fresh.start()

    eventually(lambda: fresh.holds() == {}, within=60)
    eventually(lambda: not fresh.server("ana"), within=60)
    fresh.start_server("bo", project="vision", gpus="1")
    assert fresh.holds() == {"bo": 1}


def test_a_service_that_is_killed_comes_back_and_knows_the_sessions(
    fresh: HubPlatform, eventually: Eventually
):
    fresh.start_server("ana", project="vision", gpus="0.5")
    assert fresh.process is not None
    [service] = [
        child
        for child in psutil.Process(fresh.process.pid).children()
        if "runai.hub_service" in child.cmdline()
    ]
    service.kill()
    fresh.spawn("bo", project="vision", gpus="0.5").raise_for_status()
    fresh.wait_ready("bo")

    assert fresh.holds() == {"ana": 0.5, "bo": 0.5}
