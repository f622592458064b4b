"""Colours and the progress bar appear on terminals only.

Each command runs as a process, once on a real pseudo-terminal and once into a pipe.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.terminal import on_terminal
from waiting import eventually

RUNAI = [sys.executable, "-m", "runai.hub_service.cli"]
SLEEP = ["--", "sleep", "600"]
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
"""A progress bar hides the cursor and shows it again."""


# -- colours -------------------------------------------------------------------------------------


def test_command_output_has_colours_only_on_a_terminal_and_the_same_words_in_a_pipe(bob):
    bob("submit", "exp1", "-g", "1", *SLEEP)
    eventually(lambda: bob.describe("exp1")["state"] == "running")
    environment = {"HOME": os.environ["HOME"], **bob.environment}
    for arguments in (["list"], ["describe", "exp1"], ["doctor"]):
        piped = subprocess.run(
            [*RUNAI, *arguments],
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            check=False,
        )
        with on_terminal([*RUNAI, *arguments], environment) as (terminal, _):
            output = terminal.read_to_end()

        assert b"\x1b" not in piped.stdout + piped.stderr, arguments
        assert COLOUR.search(output), arguments
        first = piped.stdout.split(maxsplit=1)[0]
        assert first in COLOUR.sub(b"", output), arguments


def test_no_color_variable_disables_colours_of_tables(bob):
    bob("submit", "exp1", *SLEEP)
    environment = {**bob.environment, "NO_COLOR": "1"}
    with on_terminal([*RUNAI, "list"], environment) as (terminal, _):
        # Sequences that set a colour; bold letters are allowed.
        assert not re.search(rb"\x1b\[(3|4|9|10)\d", terminal.read_to_end())


@pytest.mark.parametrize(
    "arguments",
    [["logs", "gone"], ["config", "project", "x"], ["doctor"], ["submit", "--gpus", "x"]],
    ids=lambda words: words[0],
)
def test_no_color_variable_disables_colours_of_errors(home, arguments):
    environment = {"HOME": str(home), "NO_COLOR": "1"}
    with on_terminal([*RUNAI, *arguments], environment) as (terminal, _):
        output = terminal.read_to_end()

    assert output.strip()
    assert not COLOUR.search(output)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_narrow_terminal_table_omits_columns_and_truncates_no_name(bob, columns):
    bob("submit", "a-name-of-thirty-letters-or-more", "-g", "0.5", *SLEEP)
    environment = {**bob.environment, "COLUMNS": str(columns)}
    for arguments, name in (
        (["list"], "a-name-of-thirty-letters-or-more"),
        (["list", "-o", "wide"], "a-name-of-thirty-letters-or-more"),
        (["list", "projects"], "vision"),
        (["list", "nodes"], "NODE"),
    ):
        with on_terminal([*RUNAI, *arguments], environment) as (terminal, _):
            output = COLOUR.sub(b"", terminal.read_to_end()).decode()

        assert name in output, arguments
        assert "…" not in output, arguments
        assert max(map(len, output.splitlines()[:2])) <= columns, arguments


# -- output that cannot be written or encoded ----------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["completion", "bash"], ["schedule", "-"], ["schedule", "-h"]],
    ids=" ".join,
)
def test_command_output_to_a_full_disk_ends_with_one_error_sentence(home, arguments):
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [*RUNAI, *arguments],
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
            input=b"{}",
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )

    assert process.returncode == 1
    sentence = b"Error: The output cannot be written: no space left on device.\n"
    assert process.stderr == sentence


def test_submit_from_a_removed_current_folder_is_refused_with_its_name(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()

    process = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *RUNAI, "submit", "exp", "--", "true"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )

    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        f"Error: {folder}, the current folder, was removed.",
        "Hint: Go to one that exists: cd.",
    ]


def test_logs_command_escapes_unencodable_letters_and_prints_every_line(bob):
    bob("submit", "exp1", "--", "printf", "first\\n日本 😀 é\\nlast\\n")
    eventually(lambda: bob.describe("exp1")["state"] == "succeeded")
    environment = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "latin-1", **bob.environment}

    def print_with(*arguments: str) -> str:
        result = subprocess.run(
            [*RUNAI, *arguments], env=environment, capture_output=True, check=True
        )
        assert result.stderr == b""
        return result.stdout.decode("latin-1")

    assert print_with("logs", "exp1") == "first\n\\u65e5\\u672c \\ud83d\\ude00 é\nlast\n"
    assert json.loads(print_with("describe", "exp1", "-o", "json"))["command"][1].count("日本 😀 é")


def test_json_output_escapes_control_characters_without_data_loss(bob):
    control_text = "\x1b]0;title\x07 \x9b2J \x85 \u202e \u2028 \U000e0001 ü"
    bob("submit", "exp1", "-e", f"A={control_text}", "--", "sleep", "600", control_text)
    with on_terminal([*RUNAI, "describe", "exp1", "-o", "json"], bob.environment) as (terminal, _):
        output = terminal.read_to_end().decode().replace("\r\n", "\n")

    unprintable = {letter for letter in output if not letter.isprintable()}
    assert unprintable == {"\n"}
    assert json.loads(output)["command"][-1] == control_text


def test_top_restores_the_terminal_when_it_quits(bob):
    bob("submit", "exp1", "-g", "1", *SLEEP)
    program = [*RUNAI, "top", "jobs"]
    environment = {"HOME": os.environ["HOME"], **bob.environment}
    with on_terminal(program, environment, with_input=True) as (terminal, process):
        terminal.read_until(b"exp1")
        terminal.type("q")
        screen = terminal.read_to_end()
        assert process.wait(60) == 0

    enter_screen, leave_screen = b"\x1b[?1049h", b"\x1b[?1049l"
    assert screen.index(enter_screen) < screen.rindex(leave_screen)
    assert b"of 5 GPUs allocated" in screen


# -- progress ------------------------------------------------------------------------------------


@pytest.fixture
def silent_hub() -> Iterator[socket.socket]:
    """Listen as a hub that accepts connections and never answers, until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server_socket:
        yield server_socket


def address(server_socket: socket.socket) -> str:
    return f"http://127.0.0.1:{server_socket.getsockname()[1]}/"


SLOW_COMMANDS = [
    pytest.param(["doctor"], "Examining this computer", id="doctor"),
    pytest.param(["usage"], "Adding up", id="usage"),
    pytest.param(["schedule", "--live"], "Asking the scheduler", id="schedule"),
    pytest.param(["simulate", "--history", "7d"], "Asking for the history", id="simulate"),
]


@pytest.mark.parametrize(("arguments", "message"), SLOW_COMMANDS)
def test_slow_commands_show_a_spinner_on_a_terminal(home, silent_hub, arguments, message):
    hub = address(silent_hub)
    program = [*RUNAI, *arguments]
    environment = {
        "HOME": str(home),
        "JUPYTERHUB_API_TOKEN": "t",
        "RUNAI_API_URL": f"{hub}services/runai/",
    }
    with on_terminal(program, environment, stdout=subprocess.DEVNULL) as (terminal, process):
        terminal.read_until(message.encode())
        assert HIDE_CURSOR in terminal.screen
        silent_hub.close()  # the waiting client is refused now
        process.terminate()


def test_terminal_spinner_is_cleared_when_the_command_ends(home, silent_hub):
    program = [*RUNAI, "login", address(silent_hub), "--token"]
    with on_terminal(program, {"HOME": str(home)}) as (terminal, process):
        connection, _ = silent_hub.accept()
        terminal.read_until(b"Asking")
        silent_hub.close()
        connection.close()
        output = terminal.read_to_end()
        assert process.wait(60) == 1

    assert output.rindex(HIDE_CURSOR) < output.rindex(SHOW_CURSOR)
    after = output[output.rindex(SHOW_CURSOR) :]
    assert b"Nothing answers" in after
    assert b"Asking" not in after


PROGRESS_SCRIPT = """
import sys
from runai.hub_service.cli.output.spinner import show_progress
with show_progress("Copying") as report_progress:
    report_progress("ledger.sqlite", 30, 100)
    sys.stdin.readline()  # until the test has read the bar
print("done", flush=True)
"""


def test_terminal_progress_bar_names_the_current_file(home):
    program = [sys.executable, "-c", PROGRESS_SCRIPT]
    with on_terminal(program, {"HOME": str(home)}) as (terminal, process):
        terminal.read_until(b"Copying: ledger.sqlite")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        terminal.read_until(b"done")


def test_terminal_spinner_is_not_written_into_a_pipe(home: Path, silent_hub):
    with subprocess.Popen(
        [*RUNAI, "login", address(silent_hub), "--token"],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        connection, _ = silent_hub.accept()
        silent_hub.close()
        connection.close()
        output, _ = process.communicate(timeout=60)

    assert b"Nothing answers" in output
    assert b"\x1b" not in output
