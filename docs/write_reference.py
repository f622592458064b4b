"""Write the generated blocks of docs/reference.md: commands from click, routes from OpenAPI.

`make docs` runs it; `tests/meta/test_docs.py` fails while the file is stale. The prose between the
blocks is written by hand. A block opens with `<!-- NAME -->` and closes with `<!-- end NAME -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from runai.hub_service.api.app import openapi_document
from runai.hub_service.cli import cli

REFERENCE = Path(__file__).parent / "reference.md"
WIDTH = 96


def main() -> None:
    """Bring the file up to date."""
    REFERENCE.write_text(refreshed(REFERENCE.read_text(encoding="utf-8")), encoding="utf-8")


def refreshed(text: str) -> str:
    """Return the page with every generated block as it should be."""
    for name, block in BLOCKS.items():
        pattern = f"<!-- {name} -->\n(.*?)<!-- end {name} -->"
        (found,) = re.finditer(pattern, text, re.DOTALL)  # one block of each name
        text = text[: found.start(1)] + block() + text[found.end(1) :]
    return text


def _commands() -> str:
    return "\n".join(
        f"### `{path}`\n```text\n{_help(command, path)}\n```\n"
        for path, command in _walk(cli, "runai")
    )


def _walk(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from _walk(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _help(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    return click.unstyle(command.get_help(context))


def _routes() -> str:
    rows = ["| route | what it does |", "|---|---|"]
    paths: Mapping[str, Mapping[str, Any]] = openapi_document()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            summary = operation.get("description", "").partition("\n")[0]
            rows.append(f"| `{method.upper()} {path}` | {summary} |")
    return "\n".join(rows) + "\n"


BLOCKS: Mapping[str, Callable[[], str]] = {"commands": _commands, "routes": _routes}


if __name__ == "__main__":
    main()
