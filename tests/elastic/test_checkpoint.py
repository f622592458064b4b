"""Checkpoint files: complete or absent, however the writing process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings

import pytest

from runai.elastic import checkpoint

SAVE_KILLED_AT_EVENT = """
import os, signal, sys
from runai.elastic import checkpoint

directory, event, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
armed = False
seen = 0

def die(name, arguments):
    global seen
    if armed and name == event and "update-" in str(arguments[0]):
        seen += 1
        if seen == nth:
            os.kill(os.getpid(), signal.SIGKILL)

def write(file):
    file.write(b"new" * 1000)
    file.flush()
    if event == "half":
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die)
checkpoint.save(directory, 1, lambda file: file.write(b"oldest"))
checkpoint.save(directory, 2, lambda file: file.write(b"old."))
armed = True
checkpoint.save(directory, 3, write)
"""


def _save(directory, update, content=b"", **options):
    return checkpoint.save(directory, update, lambda file: file.write(content), **options)


def _load(directory):
    return checkpoint.load(directory, lambda file: file.read(4))


def test_load_without_a_checkpoint_returns_none(tmp_path):
    assert _load(tmp_path / "never") is None
    assert checkpoint.latest(tmp_path / "never") is None


def test_newest_checkpoint_is_loaded_and_two_are_retained(tmp_path):
    paths = [_save(tmp_path, update, b"%04d" % update) for update in (9, 10, 11)]

    assert _load(tmp_path) == (11, b"0011")
    assert checkpoint.latest(tmp_path) == paths[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "update-0000000010.ckpt",
        "update-0000000011.ckpt",
    ]


@pytest.mark.parametrize(
    ("damage", "warning"),
    [
        pytest.param(lambda content: content[: len(content) // 2], "cut off", id="half"),
        pytest.param(lambda content: content[:-1], "cut off", id="one-byte-short"),
        pytest.param(lambda _: b"", "cut off", id="empty"),
        pytest.param(lambda content: b"X" + content[1:], "altered", id="one-byte-altered"),
    ],
)
def test_load_skips_a_damaged_checkpoint_with_a_warning(tmp_path, damage, warning):
    whole = _save(tmp_path, 1, b"good")
    damaged = _save(tmp_path, 2, b"damaged" * 100)
    damaged.write_bytes(damage(damaged.read_bytes()))

    with pytest.warns(UserWarning, match=warning):
        assert _load(tmp_path) == (1, b"good")
    assert checkpoint.latest(tmp_path) == whole


def test_load_of_damaged_checkpoints_only_is_an_error(tmp_path):
    _save(tmp_path, 1, b"only").write_bytes(b"")

    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(checkpoint.CheckpointError, match="None of the 1 checkpoints"),
    ):
        _load(tmp_path)


def test_save_of_an_earlier_update_removes_later_checkpoints(tmp_path):
    for update in (1, 2, 100):
        _save(tmp_path, update, b"%04d" % update, keep=3)

    _save(tmp_path, 3, b"0003")

    assert _load(tmp_path) == (3, b"0003")
    assert [p.name for p in tmp_path.iterdir() if "100" in p.name] == []


def test_failed_save_leaves_the_old_checkpoint_and_no_temporary_file(tmp_path):
    _save(tmp_path, 1, b"good")

    def fail_with_full_disk(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, 2, fail_with_full_disk)

    assert _load(tmp_path) == (1, b"good")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("event", "nth", "expected"),
    [
        pytest.param("open", 1, (2, b"old."), id="before-the-file-is-made"),
        pytest.param("half", 1, (2, b"old."), id="while-writing"),
        pytest.param("os.rename", 1, (2, b"old."), id="before-the-rename"),
        pytest.param("os.remove", 1, (3, b"newn"), id="before-the-oldest-is-removed"),
    ],
)
def test_kill_9_during_a_save_leaves_a_whole_checkpoint(tmp_path, event, nth, expected):
    command = [sys.executable, "-c", SAVE_KILLED_AT_EVENT, str(tmp_path), event, str(nth)]

    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert _load(tmp_path) == expected

    _save(tmp_path, 4, b"next")
    assert _load(tmp_path) == (4, b"next")
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]
