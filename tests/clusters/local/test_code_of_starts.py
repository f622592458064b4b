"""The local cluster notes with which code a job starts, beside the start, with its account."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from labs import LocalLab, plan, start
from runai.hub_service.clusters.local.processes import attempt, attempt_answers
from runai.hub_service.model.records import Code
from starts import has_exited, let_hang
from waiting import eventually_async

MISSING_TEXT = "train.py is gone; it was there before"
FIRST_SCRIPT, SECOND_SCRIPT = "import time\ntime.sleep(1000)\n", "import time\ntime.sleep(2000)\n"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def start_job(lab: LocalLab, workload: str) -> None:
    """Start a job, and wait until the code of the start is known."""
    assert await lab.cluster.apply(plan(start(workload, 0))) == []
    await wait_until_code_is_known(lab, workload)


async def wait_until_code_is_known(lab: LocalLab, workload: str) -> None:
    """Wait until the code of the last start is known."""

    def is_known() -> bool:
        row = lab.cluster.row(workload)
        return row is not None and not row.code_due

    await eventually_async(is_known)


async def code_events(lab: LocalLab, workload: str) -> list[tuple[str, str]]:
    events = await lab.cluster.history(workload)
    return [(event.kind, event.text) for event in events if event.kind in {"code", "warning"}]


async def test_script_edited_while_its_job_is_suspended_gives_a_warning_on_resume(lab, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FIRST_SCRIPT)
    old, new = (f"train.py {digest(text)[:12]}" for text in (FIRST_SCRIPT, SECOND_SCRIPT))
    spec = lab.job(
        command=(sys.executable, "train.py"),
        workdir=str(tmp_path),
        code=Code({"train.py": digest(FIRST_SCRIPT)}),
        saves=True,
    )
    await lab.cluster.submit([spec])
    await start_job(lab, spec.id)
    assert await code_events(lab, spec.id) == [("code", old)]

    await lab.cluster.suspend(spec.id, by="ana")
    await lab.until(spec.id, "suspended")
    script.write_text(SECOND_SCRIPT)
    await lab.cluster.resume(spec.id, by="ana")
    await start_job(lab, spec.id)

    warning = f"train.py is not the one that was submitted (now {new}; before {old})"
    assert ("warning", warning) in await code_events(lab, spec.id)
    record = await lab.cluster.workload(spec.id)
    assert record.code == Code({"train.py": digest(SECOND_SCRIPT)}, python=sys.executable)


async def test_missing_program_file_is_named_in_the_log_before_the_program_runs(lab, tmp_path):
    spec = lab.job(
        command=(sys.executable, "train.py"),
        workdir=str(tmp_path),
        code=Code({"train.py": digest(FIRST_SCRIPT), "/etc/never-named.py": digest(FIRST_SCRIPT)}),
    )
    await lab.cluster.submit([spec])

    await start_job(lab, spec.id)
    await lab.until(spec.id, "failed")

    logs = lab.cluster.logs(spec.id, worker=None, tail=None, follow=False)
    output = b"".join([chunk.lines async for chunk in logs]).decode()
    assert output.startswith(f"runai: {MISSING_TEXT}\n")
    assert "never-named" not in output
    assert [text for kind, text in await code_events(lab, spec.id) if kind == "warning"] == [
        f"{MISSING_TEXT} (now train.py gone; before train.py {digest(FIRST_SCRIPT)[:12]})"
    ]


async def test_code_version_of_a_gang_is_recorded_once_by_its_first_worker(lab, tmp_path):
    (tmp_path / "train.py").write_text(FIRST_SCRIPT)
    command = (sys.executable, "train.py")
    spec = lab.job(command=command, workdir=str(tmp_path), workers=2)
    await lab.cluster.submit([spec])
    starts = [start(spec.id, index, worker=index) for index in range(2)]
    assert await lab.cluster.apply(plan(*starts)) == []

    await wait_until_code_is_known(lab, spec.id)

    assert await code_events(lab, spec.id) == [("code", f"train.py {digest(FIRST_SCRIPT)[:12]}")]


async def test_code_version_that_is_never_reported_leaves_no_history_event(lab, monkeypatch):
    monkeypatch.setattr(attempt_answers.CodeAnswers, "within_s", -attempt_answers.LATE_S)
    monkeypatch.setattr(attempt.Attempt, "code", lambda _: None)
    spec = lab.job(command=("sleep", "1000"))
    await lab.cluster.submit([spec])

    await start_job(lab, spec.id)

    assert await code_events(lab, spec.id) == []


# -- one start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        '{"files": {"t.py": "password"}, "commit": ""}',
        '{"files": {"t.py": "gone"}, "commit": "password"}',
        '{"files": {"a": "gone", "b": "gone", "c": "gone", "d": "gone"}, "commit": ""}',
        '{"files": []}',
    ],
    ids=["invalid digest", "invalid commit", "four files", "list of files"],
)
def test_malformed_code_version_file_is_read_as_missing(start, content):
    start.path.mkdir()
    (start.path / "code.json").write_text(content)

    assert start.attempt.code() is None


@pytest.mark.parametrize("within_s", [1000, 0.1], ids=["long time limit", "time limit that passes"])
def test_hanging_disk_under_job_code_delays_neither_start_nor_end_of_a_worker(
    start, eventually, tmp_path, monkeypatch, within_s
):
    names = "program_files.read_code", "code_note.READ_WITHIN_S"
    pid = let_hang(monkeypatch, tmp_path, *names, within_s)

    start("true", code=["t.py"])

    assert start.final_exit().exit_code == 0
    assert start.attempt.holder() is None
    eventually(pid.exists)
    reader = int(pid.read_text())
    if within_s > 1:
        psutil.Process(psutil.Process(reader).ppid()).kill()
    eventually(lambda: has_exited(reader))
    assert start.attempt.code() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another account")
def test_program_file_is_read_with_the_account_of_the_job(start, eventually):
    account, folder = pwd.getpwnam("nobody"), Path(tempfile.mkdtemp())
    identity = {"uid": account.pw_uid, "gid": account.pw_gid, "user": account.pw_name}
    try:
        folder.chmod(0o755)
        (folder / "mine.py").write_text(FIRST_SCRIPT)
        (folder / "secret.py").write_text(SECOND_SCRIPT)
        (folder / "secret.py").chmod(0o600)
        start("true", workdir=str(folder), code=["mine.py", "secret.py"], **identity).final_exit()
        eventually(lambda: start.attempt.code() is not None)
    finally:
        shutil.rmtree(folder)

    code = start.attempt.code()
    assert code is not None
    assert code.files == {"mine.py": digest(FIRST_SCRIPT), "secret.py": "not readable"}


def test_worker_without_code_instructions_writes_no_code_note(start):
    start("true").final_exit()

    assert not (start.path / "code.json").exists()
