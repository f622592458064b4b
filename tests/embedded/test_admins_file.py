"""Real platforms with an admin's own `jupyterhub_config.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from hub_platform import HubPlatform, running_hub
from ports import free_port
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.cli.doctor.platform_checks import check_settings
from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "projects.md"


def documented_culler(timeout_s: int) -> str:
    """Return the documented lines that start the culler, with another timeout."""
    block = r"```python\n(import sys\n\nc\.JupyterHub\.load_roles.*?)```"
    (lines,) = re.findall(block, PAGE.read_text(), re.DOTALL)
    short, replacements = re.subn(r"--timeout=\d+", f"--timeout={timeout_s}", lines)
    assert replacements == 1
    return str(short)


def run_job(platform: HubPlatform, user: str) -> None:
    """Submit a job as a user, and wait for its end."""
    url = f"{platform.http.base_url}/services/runai/"
    with Client(url, platform.token(user), patience_s=60) as client:
        request = SubmitRequest(
            name="job", project="vision", gpus=Decimal("0.5"), command=["/bin/true"]
        )
        (workload,) = client.submit(request).workloads
        eventually(lambda: client.workload(workload.id).state == "succeeded", what="the job ends")


def test_documented_culler_stops_idle_server_and_jobs_still_run(tmp_path: Path):
    with running_hub(tmp_path, documented_culler(timeout_s=2)) as platform:
        log = DataDirectory(tmp_path).hub_log
        platform.spawn("ana", project="vision", gpus="0.5").raise_for_status()
        eventually(lambda: "Culling server ana" in log.read_text(), what="ana's server is culled")
        eventually(lambda: not platform.server("ana"), what="ana's server has ended")
        eventually(lambda: not platform.holds(), what="its GPU is free")

        run_job(platform, "bo")

    assert "leaves out what the platform needs: added runai" not in log.read_text()


def test_dropped_platform_settings_are_restored_and_foreign_spawner_is_reported(
    tmp_path: Path,
):
    replacing = "c.JupyterHub.spawner_class = 'simple'\nc.JupyterHub.services = []\n"
    sentence = (
        "Servers get no GPU: c.JupyterHub.spawner_class is SimpleLocalProcessSpawner,"
        " none of the platform's."
    )
    with running_hub(tmp_path, f"{replacing}c.JupyterHub.load_roles = []\n") as platform:
        up_log = tmp_path / "up.log"
        eventually(lambda: sentence in up_log.read_text(), what="the sentence")
        run_job(platform, "bo")
        finding_texts = {finding.subject: finding.text for finding in check_settings(tmp_path)}

    log = DataDirectory(tmp_path).hub_log.read_text()
    assert finding_texts["sessions"].startswith(sentence)
    for addition in (
        "runai to c.JupyterHub.services",
        "user to c.JupyterHub.load_roles",
        "JUPYTER_CONFIG_PATH, JUPYTER_PATH to c.Spawner.environment",
    ):
        assert addition in finding_texts["settings"]
        assert f"leaves out what the platform needs: added {addition}" in log


def _output_of_refused_start(data_dir: Path, config: str) -> str:
    """Return the output of a start that this admin's file ends."""
    (data_dir / "jupyterhub_config.py").write_text(config)
    data_dir.chmod(0o700)
    start = ["-m", "runai.embedded", "--port", str(free_port()), "--data-dir", str(data_dir)]
    refused = subprocess.run(
        [sys.executable, *start, "--simulate", "1"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert refused.returncode == 1
    return refused.stdout


def test_exit_call_in_admins_config_file_is_reported_with_its_line(tmp_path: Path):
    output = _output_of_refused_start(tmp_path, "import sys\n\nsys.exit('no licence')\n")

    assert "runai up: jupyterhub_config.py ends the start in line 3: no licence" in output


def test_admins_setting_of_wrong_type_is_refused_with_the_correct_syntax(tmp_path: Path):
    output = _output_of_refused_start(tmp_path, "c.JupyterHub.services = None")

    (finding,) = check_settings(tmp_path)
    sentence = "c.JupyterHub.services in jupyterhub_config.py is None where a list belongs"
    assert f"runai up: {sentence}. Write c.JupyterHub.services = [" in output
    assert (finding.verdict, finding.text) == (
        "failure",
        f"the last start was refused: {sentence}",
    )
    assert finding.mend.startswith("Write c.JupyterHub.services = [")
