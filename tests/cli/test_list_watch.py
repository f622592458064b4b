"""`runai list --watch`: the list, then a line for each change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.cli.output.printed_rows import PrintedRows

WATCH = [sys.executable, "-u", "-m", "runai.hub_service.cli", "list", "--watch"]
SLEEP = ("--", "sleep", "600")

CONTENT_BY_ROW = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 3))


@given(CONTENT_BY_ROW, st.lists(CONTENT_BY_ROW, max_size=8))
def test_rows_last_printed_by_a_watched_list_match_the_last_event(first, events):
    printed_rows = PrintedRows[tuple[str, int]](lambda row: row[1])
    screen: dict[str, int] = {}

    def print_changes(contents):
        rows = {name: (name, content) for name, content in contents.items()}
        changed = dict(printed_rows.record_changed(rows))
        assert all(screen.get(name) != content for name, content in changed.items())
        screen.update(changed)
        return rows

    print_changes(first)
    for event in events:
        for name in printed_rows.record_missing(print_changes(event)):
            printed_rows.forget(name)
            del screen[name]

    rows_of_no_event = first.keys() - set().union(*events)
    assert {name: screen[name] for name in screen.keys() - rows_of_no_event} == (
        {**events[-1]} if events else {}
    )


def test_watched_row_that_no_longer_matches_the_filter_is_printed_once_more():
    printed_rows = PrintedRows[str](lambda state: state, lambda state: state == "running")
    states = ["queued", "running", "failed", "failed", "running"]

    assert [printed_rows.record_changed({"a": state}) for state in states] == [
        *([], ["running"], ["failed"], [], ["running"])
    ]


@contextmanager
def watch_list(user, *arguments: str) -> Iterator[IO[str]]:
    """Run the command of a user until it is interrupted as by Ctrl-C; yield its output."""
    with subprocess.Popen(
        [*WATCH, *arguments],
        env=os.environ | user.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.strip() == ""


def read_until(output: IO[str], *words: str) -> list[str]:
    """Read lines until one has all words; return that line's words."""
    for line in output:
        if set(words) <= set(line.split()):
            return line.split()
    raise AssertionError(words)


def test_watched_list_prints_the_table_then_a_row_for_each_change(bob):
    bob("submit", "exp1", "-g", "5", *SLEEP)
    with watch_list(bob) as output:
        assert output.readline().split()[:4] == ["NAME", "PROJECT", "USER", "STATE"]
        read_until(output, "exp1", "running", "5/5")
        bob("submit", "exp2", "-g", "1", *SLEEP)
        assert "NAME" not in read_until(output, "exp2", "queued", "0/1")
        bob("suspend", "exp1")
        read_until(output, "exp1", "suspended")
        bob("delete", "exp1")
        read_until(output, "vision/exp1", "deleted")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["nodes"], ["box", "vision/exp1"], id="nodes"),
        pytest.param(["projects"], ["vision", "0.5"], id="projects"),
        pytest.param(["-o", "name"], ["vision/exp1"], id="names"),
        pytest.param(["sessions", "-o", "name"], ["vision/lab"], id="sessions"),
        pytest.param(["--state", "running"], ["exp1", "running"], id="state"),
    ],
)
def test_every_list_command_prints_changes_with_the_watch_option(bob, arguments, words):
    with watch_list(bob, *arguments) as output:
        bob("submit", "exp1", "-g", "0.5", *SLEEP)
        bob("submit", "lab", "--interactive", *SLEEP)
        read_until(output, *words)


def test_watched_json_list_prints_an_object_for_each_change(bob):
    with watch_list(bob, "-o", "json") as output:
        bob("submit", "exp1", "--workers", "8", "-g", "1", *SLEEP)
        text = ""
        for line in output:
            text += line
            if line == "}\n":
                break

    assert json.loads(text)["id"] == "vision/exp1"
