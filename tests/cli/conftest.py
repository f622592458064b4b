"""Fixtures of the command line's tests.

home      an empty home directory, and an environment that knows of no platform
runai     run the command in this process: runai("list", "-o", "json") -> click's Result
findings  run the doctor: findings("--data-dir", "…")["databases"]["verdict"]
service   a real service with five simulated GPUs and the users and projects below
as_user   the command line of a user: as_user("bob")("submit", "exp1", "--", "true")
bob       the command line of a member of project vision, in a directory of his own
start_service, command_line    the same for tests that stop and start the service themselves
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

if TYPE_CHECKING:
    from in_process_service import RunningService

PLATFORM_VARIABLES = ("RUNAI_API_URL", "JUPYTERHUB_API_TOKEN", "RUNAI_PROJECT", "RUNAI_DATA_DIR")

GPUS = 5  # on one node; a job of 8 workers with a GPU each never starts
USERS = [Actor("admin", admin=True), *(Actor(name) for name in ("bob", "patty", "ana", "eve"))]
PROJECTS = [
    ProjectSpec("vision", quota=MilliGpu(2500), members=("bob", "ana")),
    ProjectSpec("nlp", quota=MilliGpu(2500), members=("patty", "ana")),
    ProjectSpec("capped", quota=MilliGpu(1000), limit=MilliGpu(2000), members=("eve",)),
]


@dataclass(frozen=True)
class CommandLine:
    """The command line of one user."""

    name: str
    environment: Mapping[str, str]

    def __call__(self, *arguments: str, stdin: str | None = None) -> Result:
        """Run a command in this process."""
        runner = CliRunner(env=dict(self.environment))
        return runner.invoke(cli, arguments, input=stdin, prog_name="runai")

    def describe(self, name: str) -> dict[str, Any]:
        """Return the output of `runai describe` for a workload."""
        result = self("describe", name, "-o", "json")
        assert result.exit_code == 0, result.stderr
        description: dict[str, Any] = json.loads(result.stdout)
        return description

    def outside_session(self) -> CommandLine:
        """Return the same user's command line, without the environment of a session."""
        return CommandLine(self.name, {})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the user's home directory by an empty one."""
    for name in (*PLATFORM_VARIABLES, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def runai(home: Path) -> Callable[..., Result]:
    """Return a function that runs the command line."""
    return CommandLine("nobody", {})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """Run a service of its own for each test."""
    from in_process_service import running_service

    with running_service(tmp_path / "data", USERS, PROJECTS, gpus=GPUS) as running:
        yield running


@pytest.fixture
def start_service(tmp_path: Path) -> Callable[..., AbstractContextManager[RunningService]]:
    """Return a function that runs a service on the same data directory each time."""
    from in_process_service import running_service

    return partial(running_service, tmp_path / "data", USERS, PROJECTS, gpus=GPUS)


@pytest.fixture
def as_user(home: Path, service: RunningService) -> Callable[[str], CommandLine]:
    """Return a function that returns a user's command line."""
    return partial(command_line, service)


@pytest.fixture
def bob(as_user, tmp_path, monkeypatch):
    """The command line of a member of project vision, in a directory of his own."""
    monkeypatch.chdir(tmp_path)
    return as_user("bob")


@pytest.fixture(name="command_line")
def command_line_fixture(home: Path) -> Callable[[RunningService, str], CommandLine]:
    """Return a function that returns the command line of a user of a service."""
    return command_line


def command_line(service: RunningService, name: str) -> CommandLine:
    """Return the command line of a user of a service."""
    token = service.tokens[name]
    return CommandLine(name, {"RUNAI_API_URL": service.url, "JUPYTERHUB_API_TOKEN": token})


@pytest.fixture
def findings(runai: CommandLine) -> Callable[..., dict[str, dict[str, str]]]:
    """Return a function that runs the doctor and returns its findings by subject."""

    def examine(*arguments: str) -> dict[str, dict[str, str]]:
        result = runai("doctor", "-o", "json", *arguments)
        report = json.loads(result.stdout)
        assert result.exit_code == any(f["verdict"] == "failure" for f in report)
        return {f["subject"]: f for f in report}

    return examine
