"""Write the generated blocks of docs/reference.md: commands from click, routes from OpenAPI.

`make docs` runs it, `make check` runs it with `--check`. The prose between the blocks is written by
hand. A block opens with `<!-- NAME -->` and closes with `<!-- end NAME -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click

from runai.hub_service.api.app import create_app
from runai.hub_service.api.platform import Platform
from runai.hub_service.cli import cli

REFERENCE = Path(__file__).parent / "reference.md"
WIDTH = 96


def main() -> None:
    """Bring the file up to date, or with `--check` exit 1 if it is not."""
    old = REFERENCE.read_text(encoding="utf-8")
    new = refreshed(old)
    if "--check" in sys.argv[1:]:
        sys.exit(f"{REFERENCE.name} is stale, run: make docs" if new != old else 0)
    REFERENCE.write_text(new, encoding="utf-8")


def refreshed(text: str) -> str:
    """Return the page with every generated block as it should be."""
    for name, block in BLOCKS.items():
        pattern = f"<!-- {name} -->\n(.*?)<!-- end {name} -->"
        (found,) = re.finditer(pattern, text, re.DOTALL)  # one block of each name
        text = text[: found.start(1)] + block() + text[found.end(1) :]
    return text


def _commands_block() -> str:
    return "\n".join(
        f"### `{path}`\n```text\n{_help(command, path)}\n```\n" for path, command in commands()
    )


def commands(group: click.Group = cli, path: str = "runai") -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with the words that one types."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _help(command: click.Command, path: str) -> str:
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    return click.unstyle(command.get_help(context))


def routes() -> Iterator[tuple[str, str]]:
    """Yield every route of the API with the first line of what it does."""
    # Routes need no running service: only its prefix and version are looked at here.
    app = create_app(cast("Platform", SimpleNamespace(prefix="/", version="reference")))
    paths: Mapping[str, Mapping[str, Any]] = app.openapi()["paths"]
    for path, operations in sorted(paths.items()):
        for method, operation in operations.items():
            first_line = operation.get("description", "").partition("\n")[0]
            yield f"{method.upper()} {path.removeprefix('/')}", first_line


def _routes_block() -> str:
    rows = [f"| `{route}` | {what} |" for route, what in routes()]
    return "\n".join(["| route | what it does |", "|---|---|", *rows]) + "\n"


BLOCKS: Mapping[str, Callable[[], str]] = {"commands": _commands_block, "routes": _routes_block}


if __name__ == "__main__":
    main()
