"""A service that has stopped answering is restarted; a slow or starting service is not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from hub_platform import HubPlatform, running_hub
from runai.embedded.data_directory import DataDirectory
from runai.embedded.hub import FAILS_WITHIN_S, RestartDelay
from runai.embedded.liveness_probe import MAX_STEP_S, Silence
from waiting import eventually

LIMIT_S = 60.0


def silent_for(seconds: float, *, has_answered: bool = True) -> bool:
    """Return True if a service counts as hung after `seconds` of silence."""
    silence = Silence(LIMIT_S)
    if has_answered:
        silence.record_answer()
    return [silence.hangs_after(1.0) for _ in range(int(seconds))][-1]


@pytest.mark.parametrize(
    ("seconds", "has_answered", "hung"),
    [
        pytest.param(LIMIT_S - 1, True, False, id="slow"),
        pytest.param(LIMIT_S, True, True, id="hung"),
        pytest.param(100 * LIMIT_S, False, False, id="still starting"),
    ],
)
def test_service_is_hung_only_if_it_answered_before_and_is_silent_past_the_limit(
    seconds: float, has_answered: bool, hung: bool
):
    assert silent_for(seconds, has_answered=has_answered) == hung


def test_health_check_answer_resets_the_services_silence_timer():
    silence = Silence(LIMIT_S)
    silence.record_answer()
    before = [silence.hangs_after(1.0) for _ in range(int(LIMIT_S) - 1)]
    silence.record_answer()

    assert not any([*before, *(silence.hangs_after(1.0) for _ in range(int(LIMIT_S) - 1))])


def test_suspended_host_does_not_make_the_service_appear_hung():
    silence = Silence(LIMIT_S)
    silence.record_answer()

    assert not silence.hangs_after(8 * 3600.0)
    assert silence.silent_s == MAX_STEP_S


@pytest.fixture
def platform(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubPlatform]:
    monkeypatch.setenv("RUNAI_ANSWERS_WITHIN", "8")
    with running_hub(tmp_path_factory.mktemp("platform")) as platform:
        yield platform


def service_of(platform: HubPlatform) -> int:
    """Return the PID of the service, 0 while it does not run."""
    with suppress(LookupError):
        return platform.service_process().pid
    return 0


def answers(platform: HubPlatform) -> bool:
    with suppress(httpx.HTTPError):
        return platform.http.get("/services/runai/health/live", timeout=5).is_success
    return False


@pytest.mark.hub
def test_hung_service_is_restarted(platform: HubPlatform):
    hung_pid, log = service_of(platform), DataDirectory(platform.data_dir).hub_log
    log_line = f"Service runai responds (process {hung_pid})"
    eventually(lambda: log_line in log.read_text(), within=60, what="it is known to answer")

    os.kill(hung_pid, signal.SIGSTOP)
    eventually(
        lambda: service_of(platform) not in {0, hung_pid}, within=120, what="another process"
    )
    eventually(lambda: answers(platform), within=120, what="the service answers")

    assert "Service runai has not responded for 8 s" in log.read_text()


KILLED, CANNOT_START, FINISHED = -9, 2, 0  # exit statuses


@pytest.mark.parametrize(
    ("exits", "delays"),
    [
        # Each run of the service: its seconds, and its exit status.
        pytest.param([(5, CANNOT_START)] * 7, [1, 2, 4, 8, 16, 32, 32, 32], id="cannot start"),
        pytest.param([(5, KILLED)] * 3, [1, 1, 1, 1], id="killed"),
        pytest.param([(5, FINISHED)] * 3, [1, 1, 1, 1], id="stopped"),
        pytest.param([(5, None)] * 2, [1, 1, 1], id="replaced"),
        pytest.param([(FAILS_WITHIN_S, CANNOT_START)] * 3, [1, 1, 1, 1], id="failed after a while"),
        pytest.param(
            [(5, CANNOT_START), (5, CANNOT_START), (9, KILLED), (5, CANNOT_START)],
            [1, 2, 4, 1, 2],
            id="repaired",
        ),
    ],
)
def test_service_restart_delay_doubles_while_the_service_cannot_start(
    exits: list[tuple[float, int | None]], delays: list[float]
):
    delay, now = RestartDelay(), 1000.0
    actual_delays = [delay.next(now, None)]
    for run_s, status in exits:
        now += run_s
        actual_delays.append(delay.next(now, status))

    assert actual_delays == delays


@pytest.mark.hub
def test_service_starts_once_its_projects_file_is_repaired(
    platform: HubPlatform,
):
    log, projects = DataDirectory(platform.data_dir).hub_log, platform.data_dir / "projects.yaml"
    valid_text = projects.read_text()
    projects.write_text("projects: [")
    os.kill(service_of(platform), signal.SIGKILL)
    eventually(
        lambda: log.read_text().count("The GPU service cannot start. ") > 1,
        within=120,
        what="two starts fail",
    )
    projects.write_text(valid_text)

    eventually(lambda: answers(platform), within=120, what="the service answers")
