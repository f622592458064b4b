"""The umask of jobs and notebook servers that run as their users' Unix accounts."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from labs import LocalLab, local_lab, plan, start, stop
from runai.hub_service.processes.accounts import lookup_program
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.processes.accounts.known_accounts import KnownAccounts
from runai.hub_service.processes.accounts.lookup_program import login_umask
from runai.hub_service.processes.accounts.umask import (
    this_machine,
    umask_note,
    umask_of_submission,
)
from runai.hub_service.processes.user_account import UnixAccount
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.program_schemas import UmaskNote
from runai.hub_service.wire.schemas import ProjectPut
from runai.spawner.local import RunaiLocalSpawner
from unix_accounts import real_accounts

OTHER_MACHINE = "0" * 64
UMASKS = ["000", "002", "007", "022", "027", "077"]
OWNER_MASKS = ["0100", "0400", "0700", "0777"]

# -- values --------------------------------------------------------------------------------------


def test_umask_note_of_a_client_has_its_umask_without_changing_it():
    before = os.umask(0o027)
    try:
        note = umask_note()
        after = os.umask(0o027)
    finally:
        os.umask(before)

    assert note == UmaskNote(umask="0027", uid=os.geteuid(), machine=this_machine())
    assert after == 0o027


@pytest.mark.parametrize("value", UMASKS)
def test_umask_of_a_job_submission_applies_if_sent_by_the_account_on_this_machine(value):
    note = UmaskNote(umask=f"0{value}", uid=1000, machine=this_machine())

    assert umask_of_submission(note, 1000) == value


@pytest.mark.parametrize(
    ("uid", "machine"),
    [(1000, OTHER_MACHINE), (0, None), (1001, None)],
    ids=["other machine", "sudo", "other account"],
)
def test_umask_of_a_client_on_a_foreign_machine_or_account_is_ignored(uid, machine):
    note = UmaskNote(umask="0777", uid=uid, machine=machine or this_machine())

    assert umask_of_submission(note, 1000) == ""


@pytest.mark.parametrize("value", OWNER_MASKS)
def test_umask_of_a_job_submission_that_takes_the_owners_rights_is_refused(value):
    note = UmaskNote(umask=value, uid=1000, machine=this_machine())

    with pytest.raises(InvalidRequest, match=f"Your umask is {value}") as refused:
        umask_of_submission(note, 1000)

    assert refused.value.code == "umask_of_owner"


@pytest.mark.parametrize("value", UMASKS)
def test_project_umask_is_accepted_with_and_without_a_leading_zero(value):
    assert ProjectPut(umask=f"0{value}").umask == ProjectPut(umask=value).umask == value


@pytest.mark.parametrize("value", [*OWNER_MASKS, "100", "777", "08", "", 2, 18, "rwx"])
def test_project_umask_that_takes_the_owners_rights_or_is_no_text_is_refused(value):
    with pytest.raises(ValidationError, match="three octal digits"):
        ProjectPut(umask=value)


# -- accounts ------------------------------------------------------------------------------------


@pytest.fixture
def etc(tmp_path, monkeypatch):
    """An empty /etc."""
    monkeypatch.setattr(lookup_program, "ETC", str(tmp_path))
    (tmp_path / "pam.d").mkdir()
    (tmp_path / "default").mkdir()
    return tmp_path


PAM_UMASK_LINE = "session optional pam_umask.so umask=0002"


@pytest.mark.parametrize(
    ("gecos", "files", "expected"),
    [
        ("", {}, "022"),
        ("Ana,,,,umask=0002", {"login.defs": "UMASK 077"}, "002"),
        ("Ana,UMASK=77", {}, "077"),
        ("umask=none", {"login.defs": "UMASK\t\t027"}, "027"),
        ("umask=0777", {}, "077"),
        ("", {"login.defs": "# UMASK 077\nUMASKS 077"}, "022"),
        ("", {"login.defs": "USERGROUPS_ENAB yes\nUMASK 022"}, "022"),
        ("", {"login.defs": "UMASK 027", "default/login": "UMASK=077"}, "027"),
        ("", {"default/login": "UMASK=007"}, "007"),
        ("", {"pam.d/login": PAM_UMASK_LINE, "login.defs": "UMASK 077"}, "002"),
        ("", {"pam.d/common-session": "-session optional pam_umask.so", "login.defs": "UMASK 7"},
         "007"),
        ("", {"pam.d/login": f"# {PAM_UMASK_LINE}"}, "022"),
    ],
    ids=[
        *("nothing", "GECOS", "capitals", "no number", "owner's rights", "comment"),
        *("user groups", "login.defs", "default/login", "PAM", "PAM without umask", "PAM comment"),
    ],
)  # fmt: skip
def test_umask_of_an_account_is_read_from_its_login_configuration(etc, gecos, files, expected):
    for name, text in files.items():
        (etc / name).write_text(f"{text}\n")

    entry = pwd.struct_passwd(("ana", "x", 1000, 1000, gecos, "/home/ana", "/bin/sh"))
    assert login_umask(entry) == expected


@pytest.mark.parametrize(
    ("name", "umask", "expected"),
    [("daemon", "022", "002"), ("daemon", "077", "007"), ("nobody", "022", "022"),
     ("root", "022", "022")],
)  # fmt: skip
def test_usergroups_of_pam_give_a_private_group_the_owners_rights(etc, name, umask, expected):
    (etc / "pam.d/login").write_text("session optional pam_umask.so usergroups\n")
    (etc / "login.defs").write_text(f"UMASK {umask}\n")

    assert login_umask(pwd.getpwnam(name)) == expected


# -- jobs and servers ----------------------------------------------------------------------------


async def output(lab: LocalLab, workload: str) -> list[str]:
    logs = lab.cluster.logs(workload, worker=None, tail=None, follow=False)
    return "".join([chunk.lines.decode() async for chunk in logs]).splitlines()


async def test_all_workers_and_starts_of_a_job_have_its_umask(tmp_path):
    async with local_lab(tmp_path) as lab:
        script = "umask; test $RUNAI_RESUMED = 1 || exec sleep 1000"
        spec = lab.job(command=("sh", "-c", script), workers=2, umask="027")
        await lab.cluster.submit([spec])
        starts = [start(spec.id, index, worker=index) for index in range(2)]
        await lab.cluster.apply(plan(*starts))
        await lab.until(spec.id, "running")
        assert (await lab.cluster.environment(spec.id)).umask == "027"
        await lab.cluster.apply(plan(*(stop(spec.id, index) for index in range(2))))
        await lab.until(spec.id, "paused")
        await lab.cluster.apply(plan(*starts))
        await lab.until(spec.id, "succeeded")

        assert await output(lab, spec.id) == ["0027"] * 4  # two workers, two starts


SHARE = """
set -e
cd {folder}
mkdir -p {own}
echo {own} > {own}/result
"""
APPEND = """
cd {folder}
for own in *; do
    echo {own} >> $own/result && touch $own/{own} || exit 1
done
"""
KINDS = ("job", "notebook")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("useradd") is None, reason="makes Unix accounts, as root"
)
@pytest.mark.parametrize(
    ("umask", "file_mode", "folder_mode", "is_shared"),
    [("002", 0o664, 0o2775, True), ("022", 0o644, 0o2755, False), ("077", 0o600, 0o2700, False)],
)
async def test_project_folder_files_are_writable_by_members_with_umask_002(
    tmp_path, umask, file_mode, folder_mode, is_shared
):
    """As docs/project_folders.md has it: by job and by notebook, in both directions."""
    gecos, data_dir = f",,,,umask={umask}", tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    directory = AccountDirectory(KnownAccounts(data_dir))
    with real_accounts(ana=gecos, ben=gecos) as (place, names, group):
        accounts = [await directory.account(name) for name in names]
        project = place / "vision"
        project.mkdir()
        shutil.chown(project, "root", group)
        project.chmod(0o2775)
        async with local_lab(tmp_path, accounts=directory) as lab:

            async def run(account: UnixAccount, kind: str, step: str) -> bool:
                script = step.format(folder=project, own=f"{kind}-of-{account.user}")
                if kind == "notebook":
                    return in_notebook(account, script)
                assert account.uid is not None
                note = UmaskNote(umask=umask, uid=account.uid, machine=this_machine())
                spec = lab.job(
                    f"j{len(await lab.cluster.workloads())}",
                    user=account.user,
                    command=("sh", "-c", script),
                    umask=umask_of_submission(note, account.uid),
                )
                await lab.cluster.submit([spec])
                await lab.cluster.apply(plan(start(spec.id, 0)))
                return (await lab.until(spec.id, "succeeded", "failed")).exit_code == 0

            shares = [await run(account, kind, SHARE) for kind in KINDS for account in accounts]
            appends = [await run(account, kind, APPEND) for kind in KINDS for account in accounts]

        folders = sorted(project.iterdir())
        modes = {stat.S_IMODE(path.stat().st_mode) for path in folders}
        assert shares == [True] * 4  # two users, each by job and by notebook
        assert appends == [is_shared] * 4
        assert modes == {folder_mode}
        assert {path.group() for path in folders} == {group}
        results = [path / "result" for path in folders]
        assert {stat.S_IMODE(result.stat().st_mode) for result in results} == {file_mode}
        if is_shared:
            # The line of its writer, and one of each appending run.
            assert {len(result.read_text().split()) for result in results} == {5}
        private = place.glob("*/.local/share/runai")
        assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o700}


def in_notebook(account: UnixAccount, script: str) -> bool:
    """Run a script as the spawner runs a server; return True if it succeeds."""
    spawner = RunaiLocalSpawner(user=SimpleNamespace(name=account.user), system_users=True)
    spawner._start_account = account
    setup = spawner.make_preexec_fn(account.user)
    return subprocess.run(["sh", "-c", script], preexec_fn=setup, check=False).returncode == 0
