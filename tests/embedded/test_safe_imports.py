"""No program that the platform starts imports a file that a user has put into the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runai.hub_service.processes.own_process import MODULE

ROOT = Path(__file__).parents[2]
SHADOWING_MODULE = "print('imported from the home', flush=True)\nraise SystemExit(7)\n"
MODULE_NAMES = ("random", "jinja2", "asyncio", "runai", "tornado", "usercustomize")

PROGRAMS = {
    "notebook server": ("jupyterhub.singleuser", "--version"),
    "service": ("runai.hub_service",),
    "decision worker": ("runai.hub_service.controller.decision_process",),
    "agent": ("runai.hub_service.agent", "--help"),
    "MPS supervisor": ("runai.hub_service.limits.mps_supervisor",),
    "elastic worker's relay": ("runai.elastic.pod",),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Create a home with files of libraries' names, also in its own site-packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for folder in (tmp_path, tmp_path / ".local" / "lib" / version / "site-packages"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in MODULE_NAMES:
            (folder / f"{name}.py").write_text(SHADOWING_MODULE)
    return tmp_path


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_platform_program_ignores_shadowing_modules_in_the_home(home, program):
    completed = subprocess.run(
        [*MODULE, *program],
        cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "imported from the home" not in completed.stdout + completed.stderr
    assert completed.returncode != 7  # the exit code of the shadowing modules


CONTAINER_COMMANDS = {
    f"{path.name}, line {number}": re.findall(r"[\w.-]+", line[line.index("python") :])
    for folder in ("helm/templates", "images")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file()
    for number, line in enumerate(path.read_text().splitlines(), 1)
    if re.search(r"\bpython\b.* \"?-m\b", line)
}
"""Commands of chart and images that run a module."""


@pytest.mark.parametrize("command", CONTAINER_COMMANDS.values(), ids=CONTAINER_COMMANDS)
def test_container_commands_use_the_safe_python_options(command):
    assert tuple(command[1 : len(MODULE)]) == MODULE[1:]


def test_commands_of_chart_and_images_are_found():
    assert {name.partition(",")[0] for name in CONTAINER_COMMANDS} == {
        "daemonset.yaml",
        "deployment.yaml",
        "service.Dockerfile",
    }
