"""Write docs/permissions.md from the table of the tests (tests/authz.yaml).

`make docs` runs it; `tests/meta/test_docs.py` compares the page with the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from authz import READERS, ROWS, TABLE, expected  # noqa: E402  found by the line above

PAGE = Path(__file__).with_name("permissions.md")

READS = "reader"
COLUMNS = {
    "owner": "owner",
    "former member": "former member",
    "member": "member",
    "project admin": "project admin",
    "admin": "hub admin",
    READS: "read-only token",
    "outsider": "other user",
    "service": "service",
    "hub": "hub",
    "agent": "node agent",
    "worker": "worker pod",
    "nobody": "anonymous",
}
WORDS = {
    "let in": "✓",
    "403": "–",  # noqa: RUF001  a dash for refused
    "404": "hidden",
    "400": "incomplete",
    "401": "–",  # noqa: RUF001  the same
    "sent to the login": "login",
}


def page() -> str:
    """Return the page with both tables between their marks; the rest is written by hand."""
    text = PAGE.read_text(encoding="utf-8")
    for mark, lines in (("table", _table()), ("rest", _rest())):
        before, start, rest = text.partition(f"<!-- {mark} -->\n")
        _, end, after = rest.partition(f"<!-- end {mark} -->")
        text = before + start + "\n".join(lines) + "\n" + end + after
    return text


def _table() -> Iterator[str]:
    yield f"|action|route, commands, buttons|{'|'.join(COLUMNS.values())}|"
    yield f"|---|---|{':-:|' * len(COLUMNS)}"
    for row in ROWS:
        cells = [_cell(row, role) for role in COLUMNS]
        yield f"|{row['what']}|{_by(row)}|{'|'.join(cells)}|"


def _cell(row: dict[str, Any], role: str) -> str:
    # One column for all read-only tokens.
    reader_words = {WORDS[expected(row, reader)] for reader in READERS}
    if role == READS and not row.get("submits") and len(reader_words) > 1:
        return "as its user"
    return WORDS[expected(row, role)]


def _by(row: dict[str, Any]) -> str:
    # Placeholders for names.
    named = [each.replace("{node}", "NODE") for each in row.get("by", ())]
    return "<br>".join(f"`{each}`" for each in [row["route"], *named])


def _rest() -> Iterator[str]:
    for name, routes in TABLE["asks_nothing"].items():
        yield f"- `{name}`" + (": " + ", ".join(f"`{each}`" for each in routes) if routes else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
