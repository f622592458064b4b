"""Sessions and jobs of `runai up` inherit the proxies, certificates, … of an admin's shell."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import certifi
import pytest

from hub_platform import HubPlatform, running_hub
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.cli.doctor.platform_checks import check_shell_environment
from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

PROXY = "http://127.0.0.1:9"
PASSWORD = "hunter2"
PROXY_WITH_PASSWORD = f"http://ana:{PASSWORD}@127.0.0.1:9"
HOSTS_WITHOUT_PROXY = "example.org,127.0.0.1,localhost,::1"
"""The shell's, and the hub's own names."""
HUB_CONFIG = 'c.RunaiLocalSpawner.environment.update({"CUDA_HOME": "/of/the/file"})\n'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copy(certifi.where(), tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def platform(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubPlatform]:
    shell = {
        "http_proxy": PROXY,
        "HTTPS_PROXY": PROXY_WITH_PASSWORD,
        "no_proxy": "example.org",
        "NO_PROXY": "",
        "TZ": "Asia/Tokyo",
        "CUDA_HOME": str(certificates.parent),
        "SSL_CERT_FILE": str(certificates),
        "REQUESTS_CA_BUNDLE": str(certificates / "missing"),
        "ADMINS_TOKEN": PASSWORD,
        "TMPDIR": "/var/tmp",
    }
    variables = f'{{"TMPDIR": "{certificates.parent}"}}'
    config = f"{HUB_CONFIG}c.RunaiLocalSpawner.environment.update({variables})\n"
    with running_hub(tmp_path_factory.mktemp("shell"), config, shell) as platform:
        yield platform


def environment_of_job(platform: HubPlatform, **own: str) -> dict[str, str]:
    url = f"{platform.http.base_url}/services/runai/"
    with Client(url, platform.token("bo"), patience_s=60) as client:
        request = SubmitRequest(project="vision", gpus=Decimal(0), command=["env"], env=own)
        (job,) = client.submit(request).workloads
        eventually(lambda: client.workload(job.id).state == "succeeded", what="the job ends")
        lines = [line.text.rstrip("\n").partition("=") for line in client.logs(job.id)]
        return {name: value for name, _, value in lines}


def inherited(platform: HubPlatform, environment: Mapping[str, str]) -> dict[str, str]:
    names = platform.shell.keys() - {"TMPDIR"}
    return {name: value for name, value in environment.items() if name in names}


def test_session_and_job_inherit_shell_variables_unless_set_for_them(
    platform: HubPlatform, certificates: Path
):
    platform.start_server("ana")
    session = platform.environment("ana")
    platform.stop_server("ana")
    job = environment_of_job(platform)
    customized = environment_of_job(platform, HTTP_PROXY="http://mine", TZ="UTC")
    log = DataDirectory(platform.data_dir).hub_log.read_text()

    common = {
        "http_proxy": PROXY,
        "no_proxy": HOSTS_WITHOUT_PROXY,
        "NO_PROXY": HOSTS_WITHOUT_PROXY,
        "TZ": "Asia/Tokyo",
        "SSL_CERT_FILE": str(certificates),
    }
    assert inherited(platform, job) == {**common, "CUDA_HOME": str(certificates.parent)}
    assert inherited(platform, session) == {**common, "CUDA_HOME": "/of/the/file"}
    assert (customized["HTTP_PROXY"], customized["TZ"]) == ("http://mine", "UTC")
    assert "http_proxy" not in customized
    assert job["TMPDIR"].startswith("/var/tmp/runai-")
    assert session["TMPDIR"] == str(certificates.parent)
    assert PASSWORD not in log + (platform.data_dir / "up.log").read_text()


def test_doctor_names_shell_variables_that_sessions_and_jobs_do_not_inherit(
    platform: HubPlatform, certificates: Path
):
    findings = [*check_shell_environment(platform.data_dir)]

    texts = "\n".join(finding.text for finding in findings)
    assert "SSL_CERT_FILE" in findings[0].text
    assert f"cannot read REQUESTS_CA_BUNDLE={certificates}/missing" in texts
    assert "the address in HTTPS_PROXY has a user or password" in texts
    assert PASSWORD not in str(findings)
