"""`runai doctor` on a platform's own files: secrets, databases, free space on their disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import pytest

from ports import free_port
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.cli.doctor.platform_checks import (
    check_command_lines,
    check_descriptors,
    check_requests,
    check_room_for_files,
    check_shell_environment,
    check_start,
)
from runai.hub_service.clusters.local.store.cluster_lock import claim
from runai.hub_service.clusters.local.store.cluster_sqlite import SqliteStore
from runai.hub_service.processes.accounts.known_accounts import KnownAccount, KnownAccounts
from service_process import Service

FOREIGN_UID = 54_321
"""The uid of no account here."""


@pytest.mark.parametrize(("mode", "verdict"), [(0o700, "ok"), (0o750, "failure")])
def test_doctor_fails_if_other_accounts_can_read_the_secrets(mode, verdict, findings, tmp_path):
    secrets = tmp_path / "platform/secrets"
    secrets.mkdir(parents=True, mode=0o700)
    secrets.chmod(mode)

    assert (
        findings("--data-dir", str(tmp_path / "platform"))["data directory"]["verdict"] == verdict
    )


@pytest.fixture
def platform(tmp_path):
    """Make a data directory as `runai up` does, with a database."""
    directory = DataDirectory(tmp_path / "platform")
    directory.prepare(system_users=False)
    SqliteStore(directory.root / "cluster.sqlite").close()
    return directory.root


def test_doctor_reports_sound_databases_and_free_disk_space(findings, platform):
    report = findings("--data-dir", str(platform))

    assert report["databases"]["text"] == "cluster.sqlite: sound"
    assert report["disk"]["text"].endswith(f"GiB are free for {platform}")


@pytest.mark.skipif(os.geteuid() != 0, reason="root may give files away")
@pytest.mark.parametrize("name", ["secrets/accounts.json", "cluster.sqlite", "secrets"])
def test_doctor_names_files_owned_by_a_different_account(findings, platform, name):
    (platform / "secrets/accounts.json").write_text('{"accounts": {}}')
    os.chown(platform / name, FOREIGN_UID, FOREIGN_UID)

    finding = findings("--data-dir", str(platform))["ownership"]

    assert finding["verdict"] == "failure"
    assert finding["text"] == f"the platform's account (uid 0) does not own {platform / name}"
    assert finding["mend"] == f"sudo chown 0 {platform / name}"


def test_doctor_fails_if_the_accounts_file_cannot_be_read(findings, platform):
    (platform / "secrets/accounts.json").mkdir()

    finding = findings("--data-dir", str(platform))["accounts"]

    assert finding["verdict"] == "failure"
    assert "The accounts cannot be read: Is a directory" in finding["text"]


def test_doctor_names_the_remedy_for_an_interrupted_restore(findings, platform):
    (platform / "restoring").mkdir()

    finding = findings("--data-dir", str(platform))["cluster"]

    assert finding["verdict"] == "failure"
    assert finding["text"] == f"A restoration was interrupted in {platform}"
    assert "runai restore BACKUP" in finding["mend"]


def test_doctor_names_the_remedy_for_a_broken_database(findings, platform):
    (platform / "ledger.sqlite").write_bytes(b"not a database, though as long as one" * 1000)

    finding = findings("--data-dir", str(platform))["databases"]

    assert finding["verdict"] == "failure"
    assert finding["text"].startswith(f"{platform}/ledger.sqlite is broken")
    assert "runai restore" in finding["mend"]


@pytest.mark.parametrize(
    ("change", "version_text"),
    [
        ("UPDATE alembic_version SET version_num = '9999'", "schema 9999"),
        ("PRAGMA user_version = 9999", "schema 0200 with rows of the shape 9999"),
    ],
    ids=["newer schema", "newer rows"],
)
def test_doctor_names_a_database_of_a_newer_version(change, version_text, findings, platform):
    with closing(sqlite3.connect(platform / "cluster.sqlite")) as connection, connection:
        connection.execute(change)
    connection.close()

    finding = findings("--data-dir", str(platform))["databases"]

    assert finding["verdict"] == "failure"
    assert finding["text"] == (
        f"{platform}/cluster.sqlite has the {version_text}, which this version does not know"
    )
    assert "install that one again" in finding["mend"]


@pytest.mark.parametrize(
    ("group", "verdict", "text"),
    [
        ("unit/platform", "ok", "requested CPU and memory are enforced below {tree}/unit"),
        ("unit", "note", "the platform runs in {tree}/unit, not in a group named platform"),
    ],
    ids=["in a leaf of a delegated group", "in the unit's own group"],
)
def test_doctor_reports_whether_cpu_and_memory_requests_are_enforced_by_cgroups(
    group, verdict, text, platform, tmp_path
):
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "cgroup").write_text(f"0::/{group}\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(f"cgroup2 {tmp_path}/tree cgroup2 rw 0 0\n")
    (tmp_path / "tree/unit").mkdir(parents=True)
    (tmp_path / "tree/unit/cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "tree/unit/cgroup.subtree_control").touch()
    assert [*check_requests(platform, tmp_path)] == []  # no platform runs
    lock = claim(platform)  # as a running platform does

    [finding] = check_requests(platform, tmp_path)

    os.close(lock)
    assert finding.verdict == verdict
    assert text.format(tree=tmp_path / "tree") in finding.text
    assert verdict == "ok" or "docs/operations.md" in finding.mend


PASSWORD = "hunter2"
SECRET_PROXY = f"http://ana:{PASSWORD}@proxy:3128"


def make_proc_files(proc: Path, shell: dict[str, str], *, uid: int = FOREIGN_UID) -> None:
    """Make the files of a service's and a hub's process in place of /proc."""
    service = {"RUNAI_HUB_PID": "7", "RUNAI_HUB_TOKEN": PASSWORD}
    for pid, environment in ((os.getpid(), service), (7, shell)):
        folder = proc / str(pid)
        folder.mkdir()
        variables = "".join(f"{name}={value}\0" for name, value in environment.items())
        (folder / "environ").write_text(variables)
        ids = f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        (folder / "status").write_text(f"Name:\trunai\n{ids}Groups:\t4 27 \n")


INHERITED = "sessions and jobs inherit from the platform's shell: "
LEFT_OUT = "SSL_CERT_FILE=/no.pem: left out where it cannot be read"
SHELL_CASES = {
    "no variable": ({"RUNAI_HUB_TOKEN": PASSWORD}, [f"{INHERITED}nothing"]),
    "readable folder": ({"SSL_CERT_DIR": "/", "TZ": "UTC"}, [f"{INHERITED}SSL_CERT_DIR, TZ"]),
    "missing file": (
        {"SSL_CERT_FILE": "/no.pem", "TZ": "UTC"},
        [
            f"{INHERITED}TZ",
            f"the platform's account cannot read {LEFT_OUT}",
        ],
    ),
    "missing file, system users": (
        {"SSL_CERT_FILE": "/no.pem", "RUNAI_SYSTEM_USERS": "1"},
        [
            f"{INHERITED}nothing",
            f"not every user can read {LEFT_OUT}",
        ],
    ),
    "proxies with a password": (
        {"http_proxy": SECRET_PROXY, "HTTPS_PROXY": SECRET_PROXY, "MY_URL": SECRET_PROXY},
        [
            f"{INHERITED}nothing",
            "left out: the address in http_proxy has a user or password",
            "left out: the address in HTTPS_PROXY has a user or password",
        ],
    ),
    "proxy of an unsupported kind": (
        {"ALL_PROXY": f"{PASSWORD}://proxy:1080"},
        [
            f"{INHERITED}nothing",
            "left out: the address in ALL_PROXY is none that JupyterLab can use here",
        ],
    ),
    "password shared by the admin": (
        {"http_proxy": SECRET_PROXY, "RUNAI_SHARE_PROXY_PASSWORD": "1"},
        [f"{INHERITED}NO_PROXY, http_proxy, no_proxy"],
    ),
}


@pytest.mark.parametrize(("shell_variables", "texts"), SHELL_CASES.values(), ids=SHELL_CASES)
def test_doctor_lists_inherited_shell_variables_without_secrets(
    shell_variables, texts, platform, tmp_path
):
    make_proc_files(tmp_path, shell_variables)
    assert [*check_shell_environment(platform, tmp_path)] == []  # no platform runs
    lock = claim(platform)  # as a running platform does

    shell_findings = [*check_shell_environment(platform, tmp_path)]

    os.close(lock)
    assert [finding.text for finding in shell_findings] == texts
    assert [finding.verdict for finding in shell_findings] == ["ok", *["note"] * (len(texts) - 1)]
    assert PASSWORD not in str(shell_findings)


def test_doctor_skips_shell_variables_of_a_process_it_cannot_read(platform, tmp_path):
    with ExitStack() as stack:
        stack.callback(os.close, claim(platform))

        assert [*check_shell_environment(platform, tmp_path)] == []  # nothing can be read


@pytest.mark.mounts
@pytest.mark.parametrize(
    ("options", "verdicts"),
    [
        (["-t", "ext4", "-o", "loop", "480"], ["ok"]),
        (["-t", "ext4", "-o", "loop", "96"], ["note"]),
        (["-t", "ext4", "-o", "loop", "32"], ["failure"]),
        (["-t", "tmpfs", "-o", "nr_inodes=0", "none"], []),
    ],
    ids=["120,000 files fit", "24,000 files fit", "8,000 files fit", "no limit of files"],
)
def test_doctor_reports_how_many_more_files_fit_on_the_disk(options, verdicts, tmp_path):
    *mount_options, device = options
    if device.isdigit():  # the size of a disk in MiB
        size_mib, device = int(device), str(tmp_path / "disk")
        Path(device).touch()
        os.truncate(device, size_mib << 20)
        bytes_per_file = "4096"
        subprocess.run(["mkfs.ext4", "-q", "-i", bytes_per_file, device], check=True)
    mount_point = tmp_path / "place"
    mount_point.mkdir()
    subprocess.run(["mount", *mount_options, device, mount_point], check=True)
    try:
        file_findings = [*check_room_for_files(mount_point)]
    finally:
        subprocess.run(["umount", mount_point], check=True)

    assert [(finding.verdict, finding.subject) for finding in file_findings] == [
        (verdict, "files") for verdict in verdicts
    ]
    ending = f" more files fit beside {mount_point}"
    assert all(finding.text.endswith(ending) for finding in file_findings)


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ("rw,relatime", "note"),
        ("rw,hidepid=0", "note"),
        ("rw,hidepid=2", "ok"),
        ("rw,relatime,hidepid=invisible,gid=4", "ok"),
    ],
)
def test_doctor_notes_if_accounts_see_command_lines_of_other_accounts(options, verdict, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\nproc /proc proc {options} 0 0\n")

    assert check_command_lines(mounts).verdict == verdict


@pytest.mark.parametrize("system_users", [True, False])
def test_doctor_checks_command_lines_only_with_system_users(findings, tmp_path, system_users):
    directory = DataDirectory(tmp_path / "platform")
    directory.prepare(system_users=system_users)

    assert ("command lines" in findings("--data-dir", str(directory.root))) == system_users


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/etc/pam.d/login").exists(), reason="needs root and PAM"
)
@pytest.mark.parametrize(
    ("expired", "last_start", "is_listed"),
    [
        pytest.param(True, "{}", True, id="expired account"),
        pytest.param(False, "{}", False, id="valid account"),
        pytest.param(True, '{"pam_service": ""}', False, id="expired account without PAM"),
    ],
)
def test_doctor_lists_expired_accounts_that_pam_checks(
    findings, tmp_path, expired, last_start, is_listed
):
    directory = DataDirectory(tmp_path / "platform")
    directory.prepare(system_users=True)
    directory.last_start.write_text(last_start)
    name = f"u{uuid4().hex[:12]}"
    subprocess.run(["useradd", "-M", *(("-e", "1") if expired else ()), name], check=True)
    try:
        KnownAccounts(directory.root).register(KnownAccount(name, 1, 1, "/home/x"))
        report = findings("--data-dir", str(directory.root))
    finally:
        subprocess.run(["userdel", name], check=True)

    assert ("expired" in report) is is_listed
    if is_listed:
        assert report["expired"]["text"] == (
            f"The account {name} has expired: nothing new starts, what runs goes on"
        )


@pytest.mark.parametrize(("limit", "verdict"), [(1024, "failure"), (4096, "ok")])
def test_doctor_fails_if_a_process_may_open_few_descriptors(limit, verdict):
    finding = check_descriptors(limit)

    assert finding.verdict == verdict
    assert finding.text.startswith(f"a process can have {limit:,} files")
    assert ("LimitNOFILE=65536" in finding.mend) == (verdict == "failure")


def test_doctor_names_the_original_of_a_copied_running_platform(findings, platform, tmp_path):
    lock = claim(platform)  # as a running platform does
    shutil.copytree(platform, tmp_path / "copy")

    finding = findings("--data-dir", str(tmp_path / "copy"))["cluster"]
    os.close(lock)

    assert finding["verdict"] == "failure"
    assert finding["text"].startswith(
        f"{tmp_path / 'copy'} is a copy of {platform}, where a platform"
    )


@pytest.fixture
def failing_start(platform, tmp_path):
    """Let a service end at a broken projects.yaml, as below a hub that holds its lock."""
    lock = DataDirectory(platform).lock("http://127.0.0.1:8000/ (process 7)")
    service = Service(tmp_path, free_port())
    service.log = platform / "hub.log"
    (tmp_path / "projects.yaml").write_text("projects: {vision: {quotta: 2}}")
    assert service.popen(RUNAI_DATA_DIR=str(platform)).wait(60) == 2
    yield service
    os.close(lock)


def test_doctor_reports_why_the_service_cannot_start(findings, platform, failing_start, tmp_path):
    finding = findings("--data-dir", str(platform))["service"]

    assert finding["verdict"] == "failure"
    assert f"{tmp_path}/projects.yaml, line 1" in finding["text"]
    assert "quotta" in finding["text"]


@pytest.mark.parametrize(
    "later_event", ["the service runs", "the start was repeated", "the hub has ended"]
)
def test_doctor_omits_the_reason_of_an_earlier_failed_start(platform, failing_start, later_event):
    with ExitStack() as stack:
        if later_event == "the service runs":
            stack.callback(os.close, claim(platform))
        elif later_event == "the start was repeated":
            with failing_start.log.open("a") as log:
                log.write("Starting service 'runai': [...]\n" * 2)
        else:
            (platform / "up.lock").unlink()

        assert [*check_start(platform)] == []


@pytest.mark.parametrize(
    ("last_start", "subject", "verdict", "text"),
    [
        pytest.param(
            '{"refused": "c.JupyterHub.services is None.", "hint": "Write c.JupyterHub.services"}',
            "settings",
            "failure",
            "the last start was refused: c.JupyterHub.services is None",
            id="start refused",
        ),
        pytest.param(
            '{"added": ["runai to c.JupyterHub.services", "a to c.Spawner.environment"]}',
            "settings",
            "note",
            "the last start added what jupyterhub_config.py leaves out:"
            " runai to c.JupyterHub.services; a to c.Spawner.environment",
            id="settings completed",
        ),
        pytest.param(
            '{"added": [], "without_gpu": "Servers get no GPU."}',
            "sessions",
            "note",
            "Servers get no GPU",
            id="spawner without GPUs",
        ),
        pytest.param(
            "no JSON", "settings", "note", "last_start.json cannot be read", id="unreadable file"
        ),
    ],
)
def test_doctor_reports_problems_of_admins_config_file_at_the_last_start(
    findings, platform, last_start, subject, verdict, text
):
    (platform / "last_start.json").write_text(last_start)
    (platform / "jupyterhub_config.py").write_text("raise SystemExit('executed')")

    finding = findings("--data-dir", str(platform))[subject]

    assert finding["verdict"] == verdict
    assert text in finding["text"]


@pytest.mark.parametrize(
    "last_start", [None, '{"added": [], "without_gpu": ""}'], ids=["no start", "complete"]
)
def test_doctor_is_silent_about_a_complete_admins_config_file(findings, platform, last_start):
    if last_start is not None:
        (platform / "last_start.json").write_text(last_start)

    assert findings("--data-dir", str(platform)).keys().isdisjoint({"settings", "sessions"})
