"""Every file has one purpose, a name for it and a docstring that states it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest

Trees = Mapping[Path, ast.Module]

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("elastic", "embedded", "hub_service", "lab", "spawner", "widgets")
SOURCES = sorted(
    path
    for folder in (*PACKAGES, "benchmarks", "examples", "tests")
    for path in (CHECKOUT / folder).rglob("*")
    if path.suffix in {".css", ".html", ".js", ".py"} and ".ipynb_checkpoints" not in path.parts
)
MODULES = [path for path in SOURCES if path.suffix == ".py"]
SHIPPED = [path for path in MODULES if path.relative_to(CHECKOUT).parts[0] in PACKAGES]

MAX_FILE_LINES = 600
MAX_MODULE_DOCSTRING_LINES = 8
# Names that say nothing about the contents.
CATCH_ALL_WORDS = {
    "common",
    "data",
    "handler",
    "helper",
    "helpers",
    "info",
    "manager",
    "util",
    "utils",
}


def _name(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Parse the shipped files once: parsing takes seconds."""
    return {path: _parsed(path) for path in SHIPPED}


def test_source_files_are_not_longer_than_the_limit():
    lines = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}

    assert {name: n for name, n in lines.items() if n > MAX_FILE_LINES} == {}


def test_file_names_have_no_catch_all_words():
    own_files = [path for path in SOURCES if "compat" not in path.parts]  # those have old names

    assert [_name(path) for path in own_files if not _words(path).isdisjoint(CATCH_ALL_WORDS)] == []


def test_every_module_has_a_docstring(trees: Trees):
    undocumented = [
        _name(path)
        for path in MODULES
        if not ast.get_docstring(trees[path] if path in trees else _parsed(path))
    ]

    assert undocumented == []


def test_module_docstrings_are_not_longer_than_the_limit(trees: Trees):
    prose = {_name(path): _prose_lines(tree) for path, tree in trees.items()}

    assert {name: n for name, n in prose.items() if n > MAX_MODULE_DOCSTRING_LINES} == {}


def test_dunder_all_occurs_only_in_packages(trees: Trees):
    """A list in each file would repeat what underscores already say."""
    modules = [path for path, tree in trees.items() if _exported(tree) and path.stem != "__init__"]

    # A module that users of the original library import; it defines nothing itself.
    assert [_name(path) for path in modules] == ["elastic/compat/reporter/report_promethues.py"]


def test_packages_define_every_exported_name(trees: Trees):
    missing = {
        _name(path): sorted(absent)
        for path, tree in trees.items()
        if (absent := (_exported(tree) or set()) - _bound(tree))
    }

    assert missing == {}


def _words(path: Path) -> set[str]:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    terms = (part.replace("data_dir", "datadir") for part in parts)  # of `--data-dir`
    return {word for part in terms for word in part.split("_")}


def _prose_lines(tree: ast.Module) -> int:
    """Count a module docstring without blank lines and indented drawings."""
    lines = (ast.get_docstring(tree) or "").splitlines()
    return sum(bool(line) and not line.startswith("    ") for line in lines)


def _exported(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a module binds: definitions, imports, assignments."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name for alias in node.names}
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names
