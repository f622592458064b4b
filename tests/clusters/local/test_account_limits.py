"""Jobs and servers have the limits that PAM sets for a real account, and nothing else of PAM."""

from __future__ import annotations

import json
import os
import pwd
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from labs import local_lab, plan, start
from runai.hub_service.cli.doctor.platform_checks import check_account_limits
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.processes.accounts import account_limits
from runai.hub_service.processes.user_account import UnixAccount
from runai.spawner.admission import SessionRefused
from runai.spawner.local import RunaiLocalSpawner
from starts import Start, one_start
from unix_accounts import accounts, new_account, pam_service

PAM_FOLDERS = [*Path("/").glob("usr/lib*/security"), *Path("/").glob("usr/lib/*/security")]
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0
    or not shutil.which("useradd")
    or not any((folder / "pam_limits.so").exists() for folder in PAM_FOLDERS),
    reason="needs root, to make an account, and PAM's module for limits",
)

PLATFORM_OPEN_FILES = 1024
LIMITS_CONF = ["hard nofile 3000", "hard nproc 150", "- as 4000000", "- core 7", "- priority 10"]
EXPECTED_LIMITS = {
    "open files": 3000,
    "processes": 150,
    "address space": 4_000_000 * 1024,  # limits.conf counts in KiB
    "core file size": 7 * 1024,
    "priority": 10,
    "umask": 22,  # not 077: the platform uses the limits of PAM alone
}
PRINT = """
echo priority $(nice)
echo umask $(umask)
while read -r line; do echo "$line"; done </proc/self/limits
"""


def hard_limits(output: str) -> dict[str, int]:
    """Return the hard limits that the script has printed, those of the test alone."""
    limits = dict(re.findall(r"^(priority|umask) (\d+)$", output, re.MULTILINE))
    limits |= dict(
        re.findall(r"^Max (.+?) +\w+ +(\w+) +(?:files|processes|bytes)", output, re.MULTILINE)
    )
    return {name: int(limits[name]) for name in EXPECTED_LIMITS}


def soft_limit(output: str) -> int:
    """Return the soft limit of descriptors that the script has printed."""
    (found,) = re.findall(r"^Max open files +(\d+)", output, re.MULTILINE)
    return int(found)


@pytest.fixture(scope="module")
def account() -> Iterator[pwd.struct_passwd]:
    with new_account() as account:
        yield account


@pytest.fixture
def pam_limits(account, tmp_path) -> Iterator[str]:
    """Return a service of PAM that sets the limits and an umask, and records its calls."""
    conf, calls = tmp_path / "limits.conf", tmp_path / "calls"
    conf.write_text("".join(f"{account.pw_name} {line}\n" for line in LIMITS_CONF))
    recorder = tmp_path / "recorder"
    recorder.write_text(f'#!/bin/sh\necho "$PAM_TYPE of $PAM_USER" >>{calls}\n')
    recorder.chmod(0o755)
    with pam_service(
        f"session required pam_limits.so conf={conf}",
        "session optional pam_umask.so umask=077",
        f"session required pam_exec.so {recorder}",
    ) as service:
        yield service


@pytest.fixture
def run_job(account, tmp_path):
    """Start a worker as the account, by a service of PAM; return the start."""

    def run_job(service: str, open_files: int = PLATFORM_OPEN_FILES) -> Start:
        identity = {"uid": account.pw_uid, "gid": account.pw_gid, "user": account.pw_name}
        return started("sh", "-c", PRINT, pam_service=service, open_files=open_files, **identity)

    with one_start(tmp_path / "attempt") as started:
        yield run_job


@pytest.fixture
def spawner(account) -> RunaiLocalSpawner:
    user = SimpleNamespace(name=account.pw_name)
    spawner = RunaiLocalSpawner(user=user, system_users=True, open_files=PLATFORM_OPEN_FILES)
    spawner._start_account = UnixAccount(
        account.pw_name, Path(account.pw_dir), account.pw_uid, account.pw_gid
    )
    return spawner


def run_server(spawner: RunaiLocalSpawner, service: str) -> str:
    """Run the script as a server; return its output."""
    (output := spawner._home / spawner._output).unlink(missing_ok=True)
    spawner.pam_service = service
    spawner._limits = spawner._account_limits()
    subprocess.run(
        ["sh", "-c", PRINT], preexec_fn=spawner.make_preexec_fn(spawner.user.name), check=True
    )
    return output.read_text()


@pytest.mark.parametrize("open_files", [1024, 5000], ids=["below hard limit", "above hard limit"])
def test_job_has_the_limits_of_its_account(run_job, pam_limits, open_files):
    job = run_job(pam_limits, open_files=open_files)

    assert job.final_exit() == ExitStatus(0)
    assert hard_limits(job.output()) == EXPECTED_LIMITS
    assert soft_limit(job.output()) <= EXPECTED_LIMITS["open files"]


def test_notebook_server_has_the_limits_of_its_account(spawner, pam_limits):
    output = run_server(spawner, pam_limits)

    assert hard_limits(output) == EXPECTED_LIMITS
    assert soft_limit(output) <= EXPECTED_LIMITS["open files"]


def test_pam_session_is_closed_after_the_limits_are_read(run_job, pam_limits, account, tmp_path):
    run_job(pam_limits).final_exit()

    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"{kind}_session of {account.pw_name}" for kind in ("open", "close")]


def test_missing_pam_service_leaves_the_platforms_limits(run_job, spawner):
    job = run_job("runai-test-none")
    job.final_exit()

    # The format of the columns "soft limit" and "hard limit" in /proc/self/limits.
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    platform_limit = f"{PLATFORM_OPEN_FILES:<20} {hard_limit:<20}"
    for output in (job.output(), run_server(spawner, "runai-test-none")):
        assert platform_limit in output
        assert "priority 0\n" in output


def test_job_and_server_starts_fail_with_a_reason_if_pam_opens_no_session(
    run_job, spawner, account
):
    with pam_service("session required pam_deny.so") as service:
        message = f"PAM (service {service}) opens no session for {account.pw_name}: "
        exit_status = run_job(service).final_exit()
        with pytest.raises(SessionRefused) as refused:
            run_server(spawner, service)

    assert exit_status.exit_code == 127
    assert exit_status.text.startswith(f"cannot start: {message}")
    assert refused.value.jupyterhub_message.startswith(message)


def test_doctor_reports_which_account_limits_apply():
    with pam_service() as service:
        present = check_account_limits(service).text
    missing = check_account_limits(service).text

    assert present.endswith(f"the limits of limits.conf, by /etc/pam.d/{service}")
    assert missing.endswith(f"the limits of `runai up`: there is no /etc/pam.d/{service}")


def test_hanging_pam_module_fails_the_limits_lookup_after_a_timeout(account, tmp_path, monkeypatch):
    monkeypatch.setattr(account_limits, "WITHIN_S", 1)
    os.mkfifo(tmp_path / "never")
    cat = shutil.which("cat")
    with pam_service(f"session required pam_exec.so {cat} {tmp_path}/never") as service:
        with pytest.raises(account_limits.NoSession, match=r"no answer within 1 s$"):
            account_limits.of_account(account.pw_name, 0, service)
        with suppress(OSError):  # the module's program reads it
            os.close(os.open(tmp_path / "never", os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize(
    ("has_account", "service"),
    [(True, "runai"), (False, "")],
    ids=["user's account", "platform's account"],
)
async def test_worker_gets_the_pam_service_only_for_a_real_account(has_account, service):
    with accounts() as unix:
        data_dir = unix.folder / "data"
        directory = unix.directory(data_dir) if has_account else None
        async with local_lab(unix.folder, accounts=directory) as lab:
            spec = lab.job(command=("true",))
            await lab.cluster.submit([spec])
            assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
            await lab.until(spec.id, "succeeded")
            (spec_file,) = data_dir.glob("**/spec.json")

            assert json.loads(spec_file.read_text())["pam_service"] == service
