"""Fixtures of the widgets' tests.

folder    the folder of the notebook, with a few programs; the working directory
service   a real service with five simulated GPUs, users bob (vision), eve (vision, nlp), root
notebook  a real IPython shell of a user with the magics loaded: notebook("bob")("%runai_list")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from in_process_service import RunningService, running_service
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.widgets import connect

PROGRAMS = {
    "hello.py": "import sys; print('hello', *sys.argv[1:])",
    "fail.py": "raise SystemExit(3)",
    "endless.py": "import threading\nprint('going', flush=True)\nthreading.Event().wait()",
    "beside.py": "NAME = 'the module beside the notebook'",
}


@dataclass(frozen=True)
class CellResult:
    """The result of a cell: its value, and its output."""

    value: object
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the user's folder, and make it the working directory."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name, program in PROGRAMS.items():
        (folder / name).write_text(program)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """Run a service of its own for each test."""
    users = [Actor("bob"), Actor("eve"), Actor("root", admin=True)]
    projects = [
        ProjectSpec("vision", quota=MilliGpu(2500), limit=MilliGpu(4000), members=("bob", "eve")),
        ProjectSpec("nlp", quota=MilliGpu(2500), members=("eve",)),
    ]
    with running_service(tmp_path / "data", users, projects, gpus=5) as running:
        yield running


@pytest.fixture
def notebook(
    folder: Path,
    service: RunningService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[[str], Callable[[str], CellResult]]]:
    """Return a function that opens a user's notebook, which is a function that runs cells."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = Config(
        {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
    )
    links = []
    hooks = sys.displayhook, sys.excepthook

    def open_notebook(user: str) -> Callable[[str], CellResult]:
        links.append(connect(service.url, service.tokens[user]))
        shell = InteractiveShell(config=config)

        def run(cell: str) -> CellResult:
            capsys.readouterr()
            execution = shell.run_cell(cell)
            captured = capsys.readouterr()
            return CellResult(execution.result, captured.out, captured.err)

        assert run("%load_ext runai.widgets").err == ""
        return run

    yield open_notebook
    sys.displayhook, sys.excepthook = hooks
    for link in links:
        link.close()
