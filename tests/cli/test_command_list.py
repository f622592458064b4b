"""The list of commands: complete, consistent with the commands, and quick."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from runai.hub_service.cli.framework.command_list import SECTIONS, cli
from runai.hub_service.cli.framework.reference import placeholder, reference

ENTRIES = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
PAGE = Path(__file__).parents[2] / "docs/cli.md"

SLOW_MODULES = {
    "httpx",
    "pydantic",
    "rich",
    "runai.hub_service.client.client",
    "jupyterhub",
    "sqlalchemy",
}
PRINT_LOADED_MODULES = """
import sys
from runai.hub_service.cli.framework.command_list import cli
cli(["--help"], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


@pytest.fixture
def context():
    return click.Context(cli, info_name="runai")


def test_summary_in_the_command_list_matches_each_commands_help(context):
    commands = {name: cli.get_command(context, name) for name in ENTRIES}

    assert {
        name: command and command.get_short_help_str(limit=200)
        for name, command in commands.items()
    } == {name: entry.summary for name, entry in ENTRIES.items()}


def test_every_command_has_help(runai):
    codes = {name: runai(name, "--help").exit_code for name in ENTRIES}

    assert {name: code for name, code in codes.items() if code != 0} == {}


@pytest.mark.parametrize(("plural", "name"), [("projects", "project"), ("users", "user")])
def test_plural_command_names_are_aliases_of_the_singular_names(plural, name, context):
    assert cli.get_command(context, plural) is cli.get_command(context, name)


@pytest.mark.parametrize(
    ("typed_name", "hint"),
    [
        pytest.param("sbmit", "Did you mean 'submit'?", id="misspelt command"),
        pytest.param("attach", "Use: runai logs NAME -f.", id="command of the original"),
        pytest.param("xyzzy", "No such command 'xyzzy'.", id="unlike any command"),
    ],
)
def test_unknown_command_is_a_usage_error_with_a_hint(runai, typed_name, hint):
    result = runai(typed_name)

    assert result.exit_code == 2
    assert f"No such command '{typed_name}'." in result.output
    assert hint in result.output


@pytest.mark.parametrize(
    ("original", "equivalent"),
    [
        pytest.param(["bash", "exp1"], ["exec", "exp1", "-it", "--", "bash"], id="bash"),
        pytest.param(
            ["submit", "--gpu", "0.5", "-i", "quay.io/x", "--environment", "A=1", "--", "true"],
            ["submit", "--gpus", "0.5", "--image", "quay.io/x", "-e", "A=1", "--", "true"],
            id="submit",
        ),
        pytest.param(
            ["submit", "--gpu=1", "-iquay.io/x", "-e", "A=1", "--environment", "B=2", "--", "x"],
            ["submit", "-g", "1", "--image=quay.io/x", "-e", "A=1", "-e", "B=2", "--", "x"],
            id="submit, attached values",
        ),
        pytest.param(
            ["submit", "--working-dir", "/tmp", "--name", "exp1", "--", "true"],
            ["submit", "exp1", "--workdir", "/tmp", "--", "true"],
            id="submit, name and directory",
        ),
    ],
)
def test_original_runai_spellings_map_to_current_options(original, equivalent, context):
    def parse(words):
        name, command, rest = cli.resolve_command(context, words)
        assert command is not None
        params = command.make_context(name, rest, parent=context).params
        if (original_name := params.pop("original_name", None)) is not None:
            params["name"] = original_name
        return name, params

    assert parse(original) == parse(equivalent)


def test_submit_help_omits_the_original_runai_spellings(runai):
    words = set(re.findall(r"--?\w[-\w]*", runai("submit", "--help").output))

    assert words & {"-i", "--gpu", "--environment", "--working-dir", "--name"} == set()


@pytest.mark.parametrize("command", [(), ("project",), ("help",), ("help", "submit")], ids=" ".join)
def test_help_command_and_bare_command_groups_print_usage_and_exit_with_0(runai, command):
    result = runai(*command)

    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_version_is_both_a_command_and_an_option(runai):
    assert runai("version").output == runai("--version").output


def test_help_imports_no_slow_modules(home):
    process = subprocess.run(
        [sys.executable, "-c", PRINT_LOADED_MODULES], capture_output=True, text=True, check=True
    )

    assert "submit" in process.stdout
    assert SLOW_MODULES & set(process.stderr.split()) == set()


def test_cli_reference_page_matches_the_commands():
    hint = "run: python -m runai.hub_service.cli.framework.reference > docs/cli.md"

    assert PAGE.read_text(encoding="utf-8") == reference(), hint


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_command_prints_a_script_for_each_shell(shell, runai):
    result = runai("completion", shell)

    assert result.exit_code == 0
    assert "_RUNAI_COMPLETE" in result.stdout


def test_shell_completion_is_silent_without_a_platform(home, monkeypatch, runai):
    monkeypatch.setenv("_RUNAI_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "runai logs ")
    monkeypatch.setenv("COMP_CWORD", "2")
    process = subprocess.run(
        [sys.executable, "-m", "runai.hub_service.cli"], capture_output=True, text=True, check=False
    )

    assert (process.stdout.strip(), process.stderr) == ("", "")


def test_version_option_prints_the_distribution_version(runai):
    assert runai("--version").output.startswith("runai 0.")


def all_commands(command=cli, path="runai"):
    yield path, command
    context = click.Context(command)
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        yield from all_commands(command.get_command(context, name), f"{path} {name}")


def test_commands_with_json_output_offer_yaml():
    formats = [
        {"json", "yaml"} & {*param.type.choices}
        for _, command in all_commands()
        for param in command.params
        if param.name == "output"
    ]

    assert len(formats) > 10  # the commands were found
    assert [choices for choices in formats if choices != {"json", "yaml"}] == []


KNOWN_PLACEHOLDERS = {
    *("NAME", "DURATION", "N", "AMOUNT", "TYPE", "VALUE", "FILE", "DIR", "COLUMN", "ADDRESS"),
    *("PROJECT", "SETTING", "FIELD", "PATH", "OCTAL"),
}


def options():
    for path, command in all_commands():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                yield pytest.param(command, option, id=f"{path} {option.opts[-1]}")


@pytest.mark.parametrize(("command", "option"), [*options()])
def test_option_help_is_a_sentence_with_a_known_placeholder(command, option):
    assert re.fullmatch(r"[A-Z]\w+ .+[^.]\.", option.help or "")
    if not option.is_flag and not isinstance(option.type, click.Choice):
        words = re.findall(r"[A-Z]{2,}|\bN\b", placeholder(option, command))
        assert set(words) - {"GPU"} <= KNOWN_PLACEHOLDERS


def examples(command):
    """Return the command lines in a command's help."""
    blocks = re.findall(r"\x08\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(command.help or ""), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=path)
        for path, command in all_commands()
        if command.params and not isinstance(command, click.Group)
    ],
)
def test_command_help_has_two_or_more_valid_examples(command, runai, monkeypatch):
    lines = examples(command)

    assert len(lines) >= 2
    monkeypatch.setattr(click.Command, "invoke", lambda *_: None)
    for line in lines:
        words = shlex.split(re.split(r"\s{2,}| < ", line)[0])
        if words[0] == "runai":
            result = runai(*words[1:])
            assert result.exit_code == 0, (line, result.output)


# Runs `runai` without the modules that its first argument names.
CLIENT_ONLY_PROGRAM = """
import sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
from runai.hub_service.cli.framework.command_list import cli
cli(prog_name="runai")
"""
PLATFORM_MODULES = "alembic,fastapi,jupyterhub,psutil,sqlalchemy,uvicorn,yaml"


@pytest.mark.parametrize(
    "command", [["up"], ["user", "list"], ["backup"], ["restore", "x"]], ids=" ".join
)
def test_client_only_install_names_the_platform_package(command):
    process = subprocess.run(
        [sys.executable, "-c", CLIENT_ONLY_PROGRAM, PLATFORM_MODULES, *command],
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 1
    assert process.stderr == (
        "Error: The platform itself is not installed here, only its client.\n"
        "Hint: pip install 'jupyter-runai[hub]'\n"
    )


def test_yaml_output_without_pyyaml_is_refused_before_submission(home):
    process = subprocess.run(
        [sys.executable, "-c", CLIENT_ONLY_PROGRAM, "yaml", "submit", "-o", "yaml", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (process.returncode, process.stderr) == (
        1,
        "Error: -o yaml needs PyYAML: pip install pyyaml\n",
    )
