"""The documentation site: no warnings, no requests to other hosts, and commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from runai.hub_service.cli import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^ *```(?P<language>\S*)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; dead links, unknown pages and unlinked pages are warnings, so errors."""
    built, trees = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("trees")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*sphinx, "-d", str(trees), str(DOCS), str(built)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return built


@pytest.mark.tier("all")  # Sphinx comes with the tools
def test_every_page_is_built(site):
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}

    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages <= built


@pytest.mark.tier("all")
def test_no_page_loads_anything_from_another_host(site):
    loads = re.compile(
        r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["'](?:https?:)?//|url\(["']?https?:"""
    )
    found = {
        f"{path.relative_to(site)}: {match.group()}"
        for pattern in ("*.html", "*.css")
        for path in site.rglob(pattern)
        for match in loads.finditer(path.read_text(encoding="utf-8"))
    }

    assert found == set()


def commands() -> Iterator[object]:
    """Yield every line of a shell block that calls `runai`, once for each page."""
    for page in PAGES:
        found = dict[str, None]()
        for block in FENCE.finditer(page.read_text(encoding="utf-8")):
            if block["language"] not in {"", "sh", "bash", "console"}:
                continue
            for line in block["text"].splitlines():
                command = line.strip().removeprefix("sudo ").removeprefix("/opt/runai/bin/")
                if command.startswith("runai ") and "..." not in command and "[" not in command:
                    found[command] = None
        yield from (pytest.param(command, id=f"{page.stem}: {command}") for command in found)


@pytest.mark.parametrize("command", list(commands()))
def test_commands_in_the_documentation_are_understood(command):
    words = shlex.split(command, comments=True)[1:]
    group: click.Command = cli
    context = click.Context(cli, info_name="runai")
    while isinstance(group, click.Group):
        name = words.pop(0)
        found = group.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        group = found
        context = click.Context(group, info_name=name, parent=context)
    if group.name == "up":
        return  # takes its own options, tested by the table of tests/embedded

    group.make_context(group.name or "", words)  # raises the error that click would print
