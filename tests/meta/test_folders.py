"""The layout of folders: few files in each, every file in a subject folder, and no import cycles.

The direction of imports is a contract of import-linter (`pyproject.toml`, `make check`).
"""

from __future__ import annotations

import ast
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

MAX_FILES = 14
MAX_FILES_OF_PARENT = {"hub_service": 3, "hub_service/api": 1, "hub_service/clusters": 1}
"""Folders whose files belong into subfolders, with the number of allowed exceptions."""


@pytest.fixture(scope="module")
def modules(shipped: dict[str, Path]) -> dict[str, Path]:
    """Return all modules of the wheel by their dotted names."""
    return {
        ".".join([package, *path.relative_to(folder).with_suffix("").parts]): path
        for package, folder in shipped.items()
        for path in folder.rglob("*.py")
        if all(map(str.isidentifier, path.relative_to(folder).with_suffix("").parts))
    }


def test_folders_have_no_more_files_than_allowed(modules, checkout):
    files = Counter(
        str(path.parent.relative_to(checkout))
        for path in set(modules.values())
        if path.name != "__init__.py"
    )
    crowded = {
        folder: count
        for folder, count in files.items()
        if count > MAX_FILES_OF_PARENT.get(folder, MAX_FILES)
    }

    assert crowded == {}


def test_every_folder_with_modules_has_an_init_file(modules):
    packages = {path.parent for path in modules.values() if path.name == "__init__.py"}
    folders_without_init = {path.parent for path in modules.values()} - packages

    assert {str(folder) for folder in folders_without_init if folder.name != "examples"} == set()


def test_modules_have_no_import_cycles(modules):
    graph = {name: _imported(path, modules) - {name} for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(" -> ".join(cycle.args[1]))


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return a file's imports, also inside functions and for type checking only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(module=str(package), names=names, level=0):
                inside = {f"{package}.{name.name}" for name in names}
                found |= inside if inside <= modules.keys() else {package, f"{package}.__init__"}
            case ast.Import(names=names):
                found |= {name.name for name in names}
    return found & modules.keys()
