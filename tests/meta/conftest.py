"""Fixtures of the tests about the project itself.

checkout   the repository's root
metadata   pyproject.toml, parsed
shipped    {"runai.widgets": PATH of widgets/, ...}: the root folders of everything in the wheel
folders    the same without folders that are shipped as files only (examples/)
wheel      the wheel, built once per session from a copy of the tree
installed  a separate virtual environment with that wheel; dependencies come from ours
install    install the wheel once more: install(DIRECTORY) -> the Python of a new environment there
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the repository's root."""
    return CHECKOUT


@pytest.fixture(scope="session")
def metadata(checkout: Path) -> dict[str, Any]:
    """Return pyproject.toml, parsed."""
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def shipped(checkout: Path) -> dict[str, Path]:
    """Return the root folders of everything in the wheel, by the type checkers' links."""
    links = (checkout / ".typing/runai").iterdir()
    return {f"runai.{link.name}": link.resolve() for link in links} | {
        "runai.examples": checkout / "examples"
    }


@pytest.fixture(scope="session")
def folders(shipped: dict[str, Path]) -> dict[str, Path]:
    """Return the root folders of the packages, without folders of files that are not imported."""
    return {
        package: folder for package, folder in shipped.items() if (folder / "__init__.py").exists()
    }


@pytest.fixture(scope="session")
def wheel(
    checkout: Path, shipped: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Build the wheel from a copy: a `build/` left in the checkout would hide missing files."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(checkout / name, source)
    for folder in {folder.relative_to(checkout).parts[0] for folder in shipped.values()}:
        shutil.copytree(
            checkout / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    out = tmp_path_factory.mktemp("wheel")
    _pip("wheel", str(source), "--no-deps", "--no-build-isolation", "--wheel-dir", str(out))
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel."""
    return _install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def install(wheel: Path) -> Callable[[Path], Path]:
    """Return a function that installs the wheel into a folder, and returns its Python."""
    return partial(_install, wheel)


def _install(wheel: Path, environment: Path) -> Path:
    """Return the Python of a new environment with the wheel, without downloads."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin/python"
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    # A path in a .pth file is searched last, and .pth files inside it (our editable install's)
    # are not read: `runai` can only come from the wheel, everything else from our environment.
    (site_packages,) = environment.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return python


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
