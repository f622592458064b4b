"""`runai doctor` beside a real JupyterHub: answering, standing still, and gone."""

from __future__ import annotations

import json
from collections.abc import Callable

import psutil
import pytest

from hub_platform import HubPlatform
from runai.hub_service.client.connection import Connection, config_path, write_config

pytestmark = [pytest.mark.hub, pytest.mark.timeout(400)]


@pytest.fixture
def findings(runai, one_gpu: HubPlatform) -> Callable[..., dict[str, dict[str, str]]]:
    """Return the doctor's findings for a logged-in member, by subject."""
    token = one_gpu.token("ana")

    def examine(port: int = one_gpu.port) -> dict[str, dict[str, str]]:
        write_config(Connection(f"http://127.0.0.1:{port}/services/runai/", token), config_path())
        report = json.loads(runai("doctor", "-o", "json").stdout)
        return {finding["subject"]: finding for finding in report}

    return examine


def test_doctor_distinguishes_running_suspended_and_missing_hubs(findings, one_gpu, free_port):
    process = psutil.Process(one_gpu.running.pid)

    running = findings()
    process.suspend()
    suspended = findings()
    process.resume()
    missing = findings(free_port())

    assert running["hub"]["verdict"] == "ok"
    assert running["hub"]["text"].startswith("JupyterHub ")
    assert running["service"]["verdict"] == "ok"
    assert suspended["hub"]["verdict"] == "failure"
    assert suspended["hub"]["text"] == "JupyterHub does not answer (ReadTimeout)"
    assert missing["hub"]["verdict"] == "failure"
    assert missing["hub"]["text"] == "JupyterHub does not answer (ConnectError)"
    assert missing["hub"]["mend"].startswith("Does it run (`runai up`)?")
