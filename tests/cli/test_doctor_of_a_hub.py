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
        told = json.loads(runai("doctor", "-o", "json").stdout)
        return {finding["subject"]: finding for finding in told}

    return examine


def test_a_hub_is_looked_at_as_it_runs(findings, one_gpu, free_port):
    assert one_gpu.process is not None
    process = psutil.Process(one_gpu.process.pid)

    well = findings()
    process.suspend()
    still = findings()
    process.resume()
    gone = findings(free_port())

    assert well["hub"]["verdict"] == "ok"
    assert well["hub"]["text"].startswith("JupyterHub ")
    assert well["service"]["verdict"] == "ok"
    assert still["hub"]["verdict"] == "failure"
    assert still["hub"]["text"] == "JupyterHub does not answer (ReadTimeout)"
    assert gone["hub"]["verdict"] == "failure"
    assert gone["hub"]["text"] == "JupyterHub does not answer (ConnectError)"
    assert gone["hub"]["mend"].startswith("Does it run (`runai up`)?")
