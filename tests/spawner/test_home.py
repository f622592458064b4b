"""The home of a user without a Unix account: made once and whole, or the start is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from runai.spawner.admission import SessionRefused
from runai.spawner.local import RunaiLocalSpawner


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/train.py").write_text("print()")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def spawner(data: Path) -> RunaiLocalSpawner:
    return RunaiLocalSpawner(
        user=SimpleNamespace(name="ana"),
        users_directory=str(data / "users"),
        examples_directory=str(data.parent / "examples"),
    )


def test_prepare_home_does_not_copy_examples_into_an_existing_home(spawner, data):
    spawner._prepare_home()
    (data / "users/ana/examples/train.py").unlink()
    spawner._prepare_home()

    assert [*(data / "users/ana/examples").iterdir()] == []


def test_start_is_refused_if_the_data_directory_is_missing(spawner, data):
    data.rename(data.with_name("aside"))

    with pytest.raises(SessionRefused, match="Your home cannot be made: No such file"):
        spawner._prepare_home()

    assert not data.exists()


def test_concurrent_first_server_starts_create_a_single_home(spawner, data, monkeypatch):
    real_rename = Path.rename

    def rename_after_second_start(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", real_rename)
        spawner._prepare_home()  # the other server's start, in between
        (target / "notebook.ipynb").write_text("{}")
        return real_rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_after_second_start)
    spawner._prepare_home()

    assert {path.name for path in (data / "users/ana").iterdir()} == {"examples", "notebook.ipynb"}
    assert [path.name for path in (data / "users").iterdir()] == ["ana"]


def test_failed_copy_of_examples_is_repeated_by_the_next_start(spawner, data):
    (data.parent / "examples/lost").symlink_to("nowhere")  # a copy that fails half way

    with pytest.raises(SessionRefused, match="Your home cannot be made"):
        spawner._prepare_home()

    (data.parent / "examples/lost").unlink()
    spawner._prepare_home()
    assert (data / "users/ana/examples/train.py").exists()
