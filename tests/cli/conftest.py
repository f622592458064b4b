"""Fixtures of the command line's tests.

home    an empty home directory, and an environment that knows of no platform
runai   run the command in this process: runai("list", "-o", "json") -> click's Result
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runai.hub_service.cli import cli

UNSET = ("RUNAI_API_URL", "JUPYTERHUB_API_TOKEN", "RUNAI_PROJECT", "RUNAI_DATA_DIR")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Move the user's home away from this machine's."""
    for name in (*UNSET, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def runai(home: Path) -> Callable[..., Result]:
    """Return a function that runs the command line."""

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, arguments, input=stdin, prog_name="runai")

    return run
