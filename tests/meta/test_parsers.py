"""The table of parsers has every function that reads untrusted input."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from parsers import PARSERS

ROOT = Path(__file__).parents[2]
FOLDERS = ("hub_service", "lab", "spawner", "embedded", "widgets")
TABLES = ("parsers.py", "object_parsers.py")
PARSER_NAME = re.compile(r"(read|parse)(_\w+)?")

NESTED_PARSERS = {
    **dict.fromkeys(("read_counting", "read_demands", "read_terms"), "pod's specification"),
    **dict.fromkeys(("read_grant", "read_part"), "pod"),
    "read_spec": "job",
    **dict.fromkeys(("read_stock", "read_taints"), "node"),
    "read_all": "snapshot",
    "parse_amount": "form",
}
"""Functions that a parser of the table calls with its own input."""
LIBRARY_PARSERS = {"parse_args": "click's: what it hands on is parsed by `values` and `wishes`"}


def parser_functions() -> Iterator[str]:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and PARSER_NAME.fullmatch(node.name):
                    yield node.name


def test_every_parser_function_is_in_the_table_or_called_by_an_entry():
    tables = "".join((ROOT / "tests" / table).read_text() for table in TABLES)
    functions = set(parser_functions())
    in_table = {name for name in functions if re.search(rf"\b{name}\b", tables)}

    assert functions - in_table == {*NESTED_PARSERS, *LIBRARY_PARSERS}
    assert {*NESTED_PARSERS.values()} <= PARSERS.keys()
