"""No test fails because a machine is slow: deadlines are long, virtual, or meant to pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MIN_DEADLINE_S = 2.0
DEADLINE_CALLS = {"timeout", "wait_for", "eventually", "eventually_async", "communicate", "Timeout"}
DEADLINE_ARGUMENTS = {"timeout", "within", "within_s"}
DEADLINE_ERRORS = {"TimeoutError", "TimeoutExpired"}


def short_deadlines(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of deadlines below two seconds that no handler expects to pass."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.With | ast.AsyncWith | ast.Try) and _expects(node):
            continue
        if isinstance(node, ast.Call) and any(0 < s < MIN_DEADLINE_S for s in _deadlines(node)):
            yield node.lineno
        yield from short_deadlines(node)


def _expects(node: ast.With | ast.AsyncWith | ast.Try) -> bool:
    parts: list[ast.AST | None] = (
        [handler.type for handler in node.handlers]
        if isinstance(node, ast.Try)
        else [item.context_expr for item in node.items]
    )
    words = {word for part in parts if part for word in ast.walk(part)}
    return any(getattr(word, "id", getattr(word, "attr", "")) in DEADLINE_ERRORS for word in words)


def _deadlines(call: ast.Call) -> Iterator[float]:
    if ast.unparse(call.func) == "asyncio.wait":
        return  # it returns without an error: a pause
    function = getattr(call.func, "attr", getattr(call.func, "id", ""))
    values = [keyword.value for keyword in call.keywords if keyword.arg in DEADLINE_ARGUMENTS]
    if function in DEADLINE_CALLS:
        values += call.args
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            yield value.value


@pytest.mark.parametrize(
    ("code", "is_short"),
    [
        ("await asyncio.wait_for(end, 0.5)", True),
        ("eventually(ends, within=1)", True),
        ("with asyncio.timeout(0.2): await end", True),
        ("await asyncio.wait_for(end, 60)", False),
        ("with asyncio.timeout(0): await end", False),
        ("await asyncio.wait([end], timeout=0.05)", False),
        ("with raises(TimeoutError): await asyncio.wait_for(end, 0.5)", False),
        ("try:\n  run(timeout=1)\nexcept TimeoutExpired:\n  pass", False),
    ],
)
def test_deadline_check_finds_short_deadlines_except_deadlines_that_must_expire(code, is_short):
    assert bool([*short_deadlines(ast.parse(code))]) == is_short


def test_tests_have_no_short_deadlines():
    short = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in short_deadlines(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert not short
