"""A notebook shows a bounded part of a log, says what it leaves out, and keeps the last state."""

from __future__ import annotations

import pytest

from runai.widgets.log_output import LAST, LINES, LONGEST, SIZE, bounded


def numbered_lines(count: int) -> list[str]:
    return [f"line {number}\n" for number in range(count)]


LOG_CASES = {
    "short log": (["a\n", "b"], ["a", "b"]),
    "progress bar, last state": (["1 %\r50 %\r100 %\n"], ["100 %"]),
    "Windows line ends": (["a\r\n", "b\r\n"], ["a", "b"]),
    "unfinished line": (["1 %\r2 %"], ["2 %"]),
    "line of a megabyte": (["x" * 1_000_000], ["x" * LONGEST + " … 996,000 more characters"]),
}


@pytest.mark.parametrize("follow", [False, True], ids=["whole log", "followed log"])
@pytest.mark.parametrize(("lines", "expected"), LOG_CASES.values(), ids=LOG_CASES)
def test_job_log_in_a_notebook_has_lines_as_a_terminal_displays_them(lines, expected, follow):
    assert [*bounded(lines, follow=follow)] == expected


def test_long_log_shows_its_newest_lines_and_a_count():
    note, *lines = bounded(numbered_lines(600_000))

    count = f"{600_000 - LINES:,}"
    assert note == f"… {count} earlier lines are not shown: `runai logs` in a terminal prints all."
    assert (len(lines), lines[-1]) == (LINES, "line 599999")


def test_long_followed_log_begins_at_once_and_ends_with_its_last_lines():
    lines = [*bounded(numbered_lines(600_000), follow=True)]

    assert lines[:2] == ["line 0", "line 1"]
    assert lines[LINES].startswith("… more is written")
    skipped = 600_000 - LINES - LAST
    assert lines[LINES + 1].startswith(f"… {skipped:,} further lines are not shown")
    assert (len(lines), lines[-1]) == (LINES + 2 + LAST, "line 599999")


@pytest.mark.parametrize("follow", [False, True], ids=["whole log", "followed log"])
def test_log_output_size_is_bounded_for_long_lines(follow):
    lines = [*bounded(("x" * 3000 for _ in range(10_000)), follow=follow)]

    assert sum(map(len, lines)) < SIZE + LAST * LONGEST + 1000
