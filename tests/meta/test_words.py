"""Plain words in docstrings, comments and pages: few sentences whose subject is a pronoun."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PRONOUNS = re.compile(
    r"\b(?i:who|whoever|whom|whose|those|others|nobody|somebody|everybody|anybody)\b"
    r"|(?:^|[.!?:]\s+)What\b(?![^.!?]*\?)",
    re.MULTILINE,
)
WORDS = re.compile(r"[A-Za-z][A-Za-z'-]*")
CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
CODE_SPAN = re.compile(r"`[^`]*`")
MAX_RATE = 2.0
"""Per 1,000 words of a folder; JupyterHub has 0.9, kopf 1.1."""
MAX_RATE_OF_FILE = 8.0
ALLOWED_HITS = 2
"""Hits up to which a short file may be above that."""


@pytest.mark.parametrize(
    "folder",
    [
        *("benchmarks", "docs", "elastic", "embedded", "examples", "hub_service"),
        *("lab", "spawner", "tests", "widgets"),
    ],
)
def test_sentences_of_docstrings_and_comments_name_their_subject(checkout, folder):
    paths = sorted((checkout / folder).rglob("*.py"))

    _check(checkout, {path: [*_prose(path)] for path in paths})


def test_sentences_of_pages_name_their_subject(checkout):
    paths = [*checkout.glob("*.md"), *sorted((checkout / "docs").rglob("*.md"))]

    _check(checkout, {path: [_page_prose(path)] for path in paths})


@pytest.mark.parametrize("page", ["docs/adr", "docs/cli.md"])
def test_sentences_of_decisions_and_help_name_their_subject(checkout, page):
    path = checkout / page
    paths = sorted(path.rglob("*.md")) if path.is_dir() else [path]

    _check(checkout, {path: [_page_prose(path)] for path in paths})


def _check(checkout: Path, found: dict[Path, list[str]]) -> None:
    """Check the rate of all files together, and the number of hits of each."""
    hits = words = 0
    worst: dict[str, int] = {}
    for path, prose in found.items():
        count = sum(len(PRONOUNS.findall(piece)) for piece in prose)
        length = sum(len(WORDS.findall(piece)) for piece in prose)
        hits, words = hits + count, words + length
        if count > ALLOWED_HITS and 1000 * count > MAX_RATE_OF_FILE * length:
            worst[str(path.relative_to(checkout))] = count

    assert worst == {}
    assert 1000 * hits <= MAX_RATE * words


def _page_prose(path: Path) -> str:
    """Return the prose of a page, without blocks and spans of code."""
    text = CODE_BLOCK.sub("", path.read_text(encoding="utf-8"))
    return CODE_SPAN.sub("x", text)


def _prose(path: Path) -> Iterator[str]:
    """Yield docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        match body[0] if isinstance(body, list) and body else None:
            case ast.Expr(value=ast.Constant(value=str(piece))):
                yield piece
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")
