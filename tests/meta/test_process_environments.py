"""Processes of other accounts get an explicit environment, without the platform's secrets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("elastic", "embedded", "hub_service", "lab", "spawner", "widgets")
START_FUNCTIONS = {"Popen", "run", "call", "check_call", "check_output", "getoutput"}
ASYNC_START_FUNCTIONS = {"create_subprocess_exec", "create_subprocess_shell", "subprocess_exec"}
ACCOUNT_ARGUMENTS = {"user", "group", "extra_groups"}


def starts_a_process(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(attr=name) if name in ASYNC_START_FUNCTIONS | {"Popen"}:
            return True
        case ast.Attribute(value=ast.Name(id="subprocess"), attr=name):
            return name in START_FUNCTIONS
        case ast.Name(id=name):
            return name in ASYNC_START_FUNCTIONS | START_FUNCTIONS - {"run", "call"}
    return False


def option_names(function: ast.AST, options: ast.expr) -> set[str]:
    """Return the keys of a mapping of options; empty if the function does not build it."""
    if isinstance(options, ast.Dict):
        return {str(key.value) for key in options.keys if isinstance(key, ast.Constant)}
    assert isinstance(options, ast.Name), "give options of a process by name"
    found: set[str] = set()
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            match target:
                case ast.Name(id=options.id) if isinstance(getattr(node, "value", None), ast.Dict):
                    found |= option_names(function, node.value)  # type: ignore[attr-defined]
                case ast.Subscript(value=ast.Name(id=options.id), slice=ast.Constant(value=key)):
                    found.add(str(key))
    return found


def starts_without_environment(source: str) -> Iterator[int]:
    """Yield the lines that start a process as another account with our own environment."""
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
    lines = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, kinds)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            if not starts_a_process(call):
                continue
            arguments = {keyword.arg for keyword in call.keywords if keyword.arg}
            for keyword in call.keywords:
                if keyword.arg is None:
                    arguments |= option_names(function, keyword.value)
            if arguments & ACCOUNT_ARGUMENTS and "env" not in arguments:
                lines.add(call.lineno)
    yield from sorted(lines)


def test_processes_of_other_accounts_get_an_explicit_environment():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in starts_without_environment(path.read_text(encoding="utf-8"))
    ]

    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("subprocess.run(['rm'], user=7)", [1]),
        ("subprocess.run(['rm'], user=7, env={})", []),
        ("subprocess.run(['rm'])", []),
        ("Popen(['rm'], group=7)", [1]),
        ("asyncio.create_subprocess_exec('rm', **{'user': 7})", [1]),
        ("workload.run(user=7)", []),
        ("def f():\n  o = {}\n  o = {'user': 7}\n  subprocess.run('rm', **o)", [4]),
        ("def f():\n  o: dict = {}\n  o['user'] = 7\n  subprocess.run('rm', **o)", [4]),
        ("def f():\n  o = {'user': 7, 'env': {}}\n  subprocess.run('rm', **o)", []),
        ("def f():\n  o = {'user': 7}\n  subprocess.run('rm', env={}, **o)", []),
        ("def f():\n  o = {'cwd': '/'}\n  subprocess.run('rm', **o)", []),
    ],
)
def test_account_check_finds_process_starts_without_an_explicit_environment(source, lines):
    assert list(starts_without_environment(source)) == lines
