"""A service that has stopped answering is restarted; a slow or starting service is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import httpx
import psutil
import pytest

from hub_platform import HubPlatform, running_hub
from runai.embedded.directory import DataDirectory
from runai.embedded.liveness_probe import MOST_AT_ONCE_S, Silence
from waiting import eventually

LIMIT = 60.0


def silent_for(seconds: float, *, has_answered: bool = True) -> bool:
    """Return True if a service counts as hung after `seconds` of silence."""
    silence = Silence(LIMIT)
    if has_answered:
        silence.heard()
    return [silence.passed(1.0) for _ in range(int(seconds))][-1]


@pytest.mark.parametrize(
    ("seconds", "has_answered", "hung"),
    [
        pytest.param(LIMIT - 1, True, False, id="slow"),
        pytest.param(LIMIT, True, True, id="hung"),
        pytest.param(100 * LIMIT, False, False, id="still starting, or waiting for the data"),
    ],
)
def test_service_counts_as_hung_if_it_has_answered_and_is_silent_too_long(
    seconds: float, has_answered: bool, hung: bool
):
    assert silent_for(seconds, has_answered=has_answered) == hung


def test_an_answer_ends_a_silence():
    silence = Silence(LIMIT)
    silence.heard()
    before = [silence.passed(1.0) for _ in range(int(LIMIT) - 1)]
    silence.heard()

    assert not any([*before, *(silence.passed(1.0) for _ in range(int(LIMIT) - 1))])


def test_a_night_in_which_the_machine_slept_is_a_moment():
    silence = Silence(LIMIT)
    silence.heard()

    assert not silence.passed(8 * 3600.0)
    assert silence.lasts == MOST_AT_ONCE_S


@pytest.fixture
def platform(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubPlatform]:
    monkeypatch.setenv("RUNAI_ANSWERS_WITHIN", "8")
    with running_hub(tmp_path_factory.mktemp("platform")) as platform:
        yield platform


def service_of(platform: HubPlatform) -> int:
    """Return the PID of the service, 0 while it does not run."""
    assert platform.process is not None
    for process in psutil.Process(platform.process.pid).children():
        with suppress(psutil.Error):
            if "runai.hub_service" in process.cmdline():
                return process.pid
    return 0


def answers(platform: HubPlatform) -> bool:
    with suppress(httpx.HTTPError):
        return platform.http.get("/services/runai/health/live", timeout=5).is_success
    return False


@pytest.mark.hub
def test_a_service_that_hangs_is_started_again(platform: HubPlatform):
    hangs, log = service_of(platform), DataDirectory(platform.data_dir).hub_log
    told = f"Service runai answers, as process {hangs}"
    eventually(lambda: told in log.read_text(), within=60, what="it is known to answer")

    os.kill(hangs, signal.SIGSTOP)
    eventually(lambda: service_of(platform) not in {0, hangs}, within=120, what="another process")
    eventually(lambda: answers(platform), within=120, what="the service answers")

    assert "Service runai has answered nothing for 8 s" in log.read_text()
