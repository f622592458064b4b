"""`runai doctor` beside a real JupyterHub: answering, standing still, and gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hub_platform import HubPlatform, running_hub
from runai.hub_service.connection import Connection, config_path, write_config

pytestmark = [pytest.mark.hub, pytest.mark.timeout(400)]


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[HubPlatform]:
    with running_hub(tmp_path / "platform") as running:
        yield running


@pytest.fixture
def findings(runai, platform: HubPlatform) -> Callable[[], dict[str, dict[str, str]]]:
    """Those of a member who has logged in, by subject."""
    url = f"{platform.http.base_url}/services/runai/"
    write_config(Connection(url, platform.token("ana")), config_path())

    def examine() -> dict[str, dict[str, str]]:
        told = json.loads(runai("doctor", "-o", "json").stdout)
        return {finding["subject"]: finding for finding in told}

    return examine


def test_a_hub_is_looked_at_as_it_runs(findings, platform):
    assert platform.process is not None
    process = psutil.Process(platform.process.pid)

    well = findings()
    process.suspend()
    still = findings()
    process.resume()
    platform.kill()
    gone = findings()

    assert well["hub"]["verdict"] == "ok"
    assert well["hub"]["text"].startswith("JupyterHub ")
    assert well["service"]["verdict"] == "ok"
    assert still["hub"]["verdict"] == "failure"
    assert still["hub"]["text"] == "JupyterHub does not answer (ReadTimeout)"
    assert gone["hub"]["verdict"] == "failure"
    assert gone["hub"]["text"] == "JupyterHub does not answer (ConnectError)"
    assert gone["hub"]["mend"].startswith("Does it run (`runai up`)?")
