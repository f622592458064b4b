"""The files that a command names, their digests, and the commit of a folder's repository."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from runai.hub_service.processes.program_files import MAX_BYTES, named_files, read_code

SHA1, SHA256 = "a" * 40, "b" * 64


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["python", "train.py", "--epochs", "3"], ["train.py"]),
        (["./run.sh"], ["./run.sh"]),
        (["python", "a.py", "--config", "conf/base.yaml"], ["a.py", "conf/base.yaml"]),
        (
            ["python", "a.py", "--config=base.yml", "model=big.TOML"],
            ["a.py", "base.yml", "big.TOML"],
        ),
        (["python", "a.py", "data=x/y=z.json"], ["a.py", "x/y=z.json"]),
        (["papermill", "in.ipynb", "in.ipynb"], ["in.ipynb"]),
        (["torchrun", "1.py", "2.py", "3.py", "4.py"], ["1.py", "2.py", "3.py"]),
        (["bash", "-c", "python t.py --c=b.yaml 2>&1 | tee t.log"], ["t.py", "b.yaml"]),
        (["timeout", "1h", "sh", "-ec", "cd x; python 'my t.py'; ls"], ["my t.py"]),
        (["sh", "-c", "python t.py >out.json; python u.py >> more.json"], ["t.py", "u.py"]),
        (["sh", "-c", "python 't.py"], []),
        (["python", "-c", "open('a b.py')"], []),
        (["python", "train", "model.pt", ".env", "key.pem", "data.csv"], []),
        (["python", "-m", "train", ".py", "https://host/a.yaml", "a\n.py"], []),
        (["python", "{source}"], []),
    ],
    ids=[
        *("script", "program", "configuration", "options", "equals sign"),
        *("named twice", "three at most"),
        *("pipe", "quoted", "output", "invalid shell text", "Python text", "other kinds of files"),
        *("module and address", "notebook cell"),
    ],
)
def test_program_and_configuration_files_are_recognised_in_a_job_command(command, files):
    assert named_files(command) == files


def test_digest_of_a_program_file_is_its_sha256_also_through_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"x" * MAX_BYTES)
    (tmp_path / "train.py").symlink_to("real")

    digest = hashlib.sha256(b"x" * MAX_BYTES).hexdigest()
    assert read_code(str(tmp_path), ["train.py"])["files"] == {"train.py": digest}
    assert read_code("/", [f"{tmp_path}/train.py"])["files"] == {f"{tmp_path}/train.py": digest}


def write_large_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("make_file", "reason"),
    [
        (os.mkfifo, "no file"),
        (Path.mkdir, "no file"),
        (lambda path: path.symlink_to("/dev/zero"), "no file"),
        (write_large_file, "over 16 MiB"),
        (lambda path: path.symlink_to("nowhere"), "gone"),
        (lambda path: path.symlink_to(path.name), "not readable"),
        (lambda path: path, "gone"),
    ],
    ids=["FIFO", "folder", "device", "large", "dangling link", "ring of links", "missing"],
)
def test_program_file_without_a_digest_has_the_reason_instead(tmp_path, make_file, reason):
    make_file(tmp_path / "train.py")

    assert read_code(str(tmp_path), ["train.py"])["files"] == {"train.py": reason}


def git(folder: Path, *words: str) -> str:
    settings = ["-c", "user.name=ana", "-c", "user.email=ana@example.org"]
    result = subprocess.run(
        ["git", *settings, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return result.stdout.strip()


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [["pack-refs", "--all"]],
        [["checkout", "-q", "--detach"]],
        [["checkout", "-q", "-b", "feature/a"]],
        [["worktree", "add", "-q", "inside", "-b", "other"]],
        [["pack-refs", "--all"], ["worktree", "add", "-q", "inside", "--detach"]],
    ],
    ids=["branch", "packed", "detached", "nested branch", "worktree", "detached worktree"],
)
def test_commit_of_a_jobs_repository_equals_that_of_git_in_any_subfolder(tmp_path, steps):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    for words in steps:
        git(tmp_path, *words)
    subfolder = tmp_path / "inside/deeper"
    subfolder.mkdir(parents=True)

    assert read_code(str(subfolder), [])["commit"] == git(subfolder, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("files", "commit"),
    [
        ({}, ""),
        ({".git/HEAD": SHA1}, SHA1),
        ({".git/HEAD": SHA256}, SHA256),
        ({".git/HEAD": "ref: refs/heads/main"}, ""),
        ({".git/HEAD": "ref: refs/heads/../../../secret", "secret": SHA1}, ""),
        ({".git/HEAD": "ref: secret", ".git/secret": SHA1}, ""),
        ({".git/HEAD": "ref: refs/heads/a", ".git/refs/heads/a": "ref: refs/heads/a"}, ""),
        ({".git/HEAD": "password"}, ""),
        ({".git/HEAD": b"\xff"}, ""),
        ({".git": "gitdir: nowhere"}, ""),
        ({".git": "gitdir: elsewhere", "elsewhere/HEAD": SHA1}, SHA1),
    ],
    ids=[
        *("no repository", "SHA-1", "SHA-256", "no commit", "path outside", "no branch", "ring"),
        *("no hash", "invalid UTF-8", "missing worktree", "submodule"),
    ],
)
def test_commit_of_a_jobs_repository_is_a_hash_or_empty(tmp_path, files, commit):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    assert read_code(str(tmp_path), [])["commit"] == commit


def test_commit_of_a_jobs_repository_is_empty_if_its_head_file_is_a_fifo(tmp_path):
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/HEAD")

    assert read_code(str(tmp_path), [])["commit"] == ""
