"""Generator of the page `docs/cli.md` from the commands' names, help and defaults.

`python -m runai.hub_service.cli.framework.reference > docs/cli.md` writes it; a test keeps it
current.
"""

import inspect
from collections.abc import Iterator
from typing import Final

import click

from runai.hub_service.cli.framework.command_list import SECTIONS, cli

_INTRODUCTION: Final = """\
# The `runai` command

<!-- Made by `python -m runai.hub_service.cli.framework.reference > docs/cli.md`; do not edit. -->

Inside a notebook session `runai` finds the hub by itself. Elsewhere log in once:

    runai login http://127.0.0.1:8000

`NAME` is `exp1`, or `project/exp1` if several projects have it. `-o json` and `-o yaml` print the
API's answer; YAML needs PyYAML (`pip install pyyaml`).
Exit codes: 0 done; 1 refused, with one sentence and a hint on standard error; 2 misuse;
124 the time of `wait` is over; 130 Ctrl-C; with `wait`, `submit --wait` and `exec`, the program's
own.

Colours and progress bars appear on terminals only; `NO_COLOR` turns colours off. A narrow terminal
leaves out columns of a table and cuts no name. Letters outside the output's encoding appear as
`\\u65e5`.
"""


def reference() -> str:
    """Return the page in Markdown."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield _INTRODUCTION
    context = click.Context(cli, info_name="runai")
    for title, commands in SECTIONS.items():
        yield f"## {title}\n"
        for name in commands:
            command = cli.get_command(context, name)
            assert command is not None, name
            yield from _command(command, f"runai {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    yield f"### {path}\n"
    yield f"    {_usage(command, path)}\n"
    yield _prose(command.help or "") + "\n"
    yield from _options(command)
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _command(child, f"{path} {name}")


def _usage(command: click.Command, path: str) -> str:
    if isinstance(command, click.Group):
        return f"{path} [OPTIONS] COMMAND ..."
    context = click.Context(command, info_name=path)
    return " ".join([path, *command.collect_usage_pieces(context)])


def _prose(text: str) -> str:
    """Convert a help text to Markdown: a block that click must not wrap becomes code."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            lines = paragraph.splitlines()[1:]
            paragraphs.append("\n".join(f"    {line}" for line in lines))
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def _options(command: click.Command) -> Iterator[str]:
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if not options:
        return
    yield "| option | meaning | default |\n| --- | --- | --- |"
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.opts)
        value = "" if option.is_flag else f" {placeholder(option, command)}".replace("|", "\\|")
        yield f"| {names}{value} | {option.help or ''} | {_default(option)} |"
    yield ""


def placeholder(option: click.Option, command: click.Command) -> str:
    """Return what stands for an option's value in the help."""
    if isinstance(option.type, click.Choice):
        return "|".join(str(choice) for choice in option.type.choices)
    return option.make_metavar(click.Context(command))


def _default(option: click.Option) -> str:
    return str(option.default) if option.show_default and option.default is not None else ""


if __name__ == "__main__":
    click.echo(reference(), nl=False)
