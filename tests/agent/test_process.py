"""The agent as the service starts it: a process with its environment, and a server for reports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from report_server import ReportServer, report_server
from runai.hub_service.agent.__main__ import AgentSettings
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.wire.errors import InvalidRequest

TOKEN = "not-to-be-told"
AGENT_COMMAND = [sys.executable, "-m", "runai.hub_service.agent"]
AGENT_ENVIRONMENT = {
    "RUNAI_API_URL": "http://127.0.0.1:9/services/runai/",  # no server listens there
    "RUNAI_AGENT_TOKEN": TOKEN,
    "RUNAI_NODE": "here",
    "RUNAI_SIMULATE": "2",
}


@pytest.fixture
def service() -> Iterator[ReportServer]:
    with report_server() as server:
        yield server


@pytest.fixture
def environment(service) -> dict[str, str]:
    return os.environ | AGENT_ENVIRONMENT | {"RUNAI_API_URL": service.url}


def test_agent_measures_allocations_until_interrupted(
    service, environment, start, allocate, eventually
):
    busy = start(busy=True)
    uuid = SimulatedDevices(2, node="here").devices()[0].uuid
    service.allocations = [allocate("vision/a", uuid, process=busy)]
    with subprocess.Popen(
        AGENT_COMMAND, env=environment, stderr=subprocess.PIPE, text=True
    ) as agent:
        eventually(
            lambda: any(s.utilization for r in service.reports for s in r.samples),
            what="the busy workload is measured",
        )
        agent.send_signal(signal.SIGINT)
        _, stderr = agent.communicate()

    assert service.requested == {("/services/runai/api/v1/nodes/here/samples", f"Bearer {TOKEN}")}
    assert (agent.returncode, stderr) == (0, "")


def test_agent_exits_when_its_parent_is_killed(service, environment, eventually):
    with subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({AGENT_COMMAND!r})"],
        env=environment,
    ) as parent:
        eventually(lambda: service.reports)
        (agent,) = psutil.Process(parent.pid).children()
        parent.kill()

    def has_exited() -> bool:
        try:
            return agent.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # its new parent has reaped it
            return True

    eventually(has_exited)


def test_agent_started_after_its_parents_exit_exits_at_once():
    exited_parent = {"RUNAI_AGENT_PARENT": "4194305"}  # above the largest possible PID
    agent_environment = os.environ | AGENT_ENVIRONMENT | exited_parent
    completed = subprocess.run(AGENT_COMMAND, env=agent_environment, check=False)

    assert completed.returncode == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"RUNAI_API_URL": ""}, "RUNAI_API_URL is not set."),
        ({"RUNAI_NODE": ""}, "RUNAI_NODE is not set."),
        ({"RUNAI_AGENT_TOKEN": ""}, "RUNAI_AGENT_TOKEN is not set."),
        ({"RUNAI_SIMULATE": "many"}, "RUNAI_SIMULATE is 'many'. Give a number."),
        ({"RUNAI_GPUS": "some"}, "RUNAI_GPUS is 'some'. Give a number."),
    ],
)
def test_invalid_agent_variable_is_named_in_the_error(change, sentence):
    with pytest.raises(InvalidRequest) as refused:
        AgentSettings.parse(AGENT_ENVIRONMENT | change)

    assert str(refused.value).startswith(sentence)


def test_agent_settings_have_defaults_and_no_token_in_their_repr():
    settings = AgentSettings.parse(
        {"RUNAI_API_URL": "http://hub/", "RUNAI_NODE": "here", "RUNAI_AGENT_TOKEN": TOKEN}
    )

    assert (settings.gpus, settings.simulate, settings.parent) == ("auto", None, None)
    assert TOKEN not in repr(settings)


def test_agent_does_not_start_in_an_invalid_environment():
    completed = subprocess.run(
        AGENT_COMMAND,
        env=os.environ | AGENT_ENVIRONMENT | {"RUNAI_API_URL": "nonsense"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.returncode == 2
    assert completed.stderr.startswith("agent: 'nonsense' is no address of a GPU service.")
    assert TOKEN not in completed.stderr
