"""Parts of log lines, joined again and printed on terminals, pipes and files."""

from __future__ import annotations

import pytest

from runai.hub_service.client.log_lines import LogPrinter, OpenLines, last_state
from runai.hub_service.wire.program_schemas import LogLine, MissingOutput


def part(text: str, worker: int = 0, attempt: int = 1) -> LogLine:
    return LogLine(worker=worker, attempt=attempt, text=text, part=True)


def end(text: str, worker: int = 0, attempt: int = 1) -> LogLine:
    return LogLine(worker=worker, attempt=attempt, text=text)


GAP = LogLine(worker=0, attempt=1, text="… gone …", missing=MissingOutput())


def test_log_line_parts_are_joined_separately_for_each_worker_and_attempt():
    lines = OpenLines()
    stream = [part("a"), part("x", 1), part("b"), end("y", 1), part("n", attempt=2), end("c"), GAP]

    whole = [(joined.worker, joined.text) for line in stream for joined in lines.add(line)]

    assert whole == [(1, "xy"), (0, "abc"), (0, "… gone …")]
    assert lines.end_all() == [end("n", attempt=2)]
    assert lines.end_all() == []


def test_log_line_with_a_missing_end_is_closed_before_the_gap_line():
    lines = OpenLines()

    assert [line.text for piece in (part("half"), GAP) for line in lines.add(piece)] == [
        "half",
        "… gone …",
    ]


@pytest.mark.parametrize(
    ("line", "state"),
    [("1 %\r2 %", "2 %"), ("1 %\r2 %\r", "2 %"), ("as on Windows\r", "as on Windows"), ("\r", "")],
)
def test_last_state_of_a_log_line_follows_its_carriage_return(line, state):
    assert last_state(line) == state


PROGRESS_BAR = [part("1 %\r"), part("2 %\r"), end("3 %"), end("done")]
TERMINAL_OUTPUT = {
    "a progress bar": (PROGRESS_BAR, "1 %\r2 %\r3 %\ndone\n"),
    "a colour in two parts": (
        [part("a\x1b[3"), part("1mb\x1b"), end("[0m")],
        "a\x1b[31mb\x1b[0m\n",
    ),
    "a control sequence in two parts": (
        [part("a\x1b"), end("]0;title\x07")],
        "a\\x1b]0;title\\x07\n",
    ),
    "a line that does not end": ([part("working …")], "working …\n"),
    "a line with a missing end": ([part("half"), GAP, end("b")], "half\n… gone …\nb\n"),
}


@pytest.mark.parametrize(("lines", "output"), TERMINAL_OUTPUT.values(), ids=TERMINAL_OUTPUT)
def test_terminal_shows_a_log_line_while_it_is_written(lines, output):
    assert printed(lines, terminal=True) == output


@pytest.mark.parametrize("several", [False, True], ids=["one worker", "several"])
def test_piped_log_has_every_character_and_line_parts_only_of_a_single_worker(several):
    prefix = "[0] " if several else ""
    lines = [end("\x1b[31m1 %\r2 %\r")] if several else [part("\x1b[31m1 %\r"), end("2 %\r")]

    assert printed(lines, several=several) == f"{prefix}\x1b[31m1 %\r2 %\r\n"
    assert LogPrinter(print, several=several, terminal=None).parts is not several


def test_unfinished_log_lines_of_workers_are_terminal_rows_below_whole_lines():
    lines = [part("1 %\r", 0), part("loading", 1), part("2 %\r", 0), end("whole", 2), end(" …", 1)]

    output = printed(lines, several=True, terminal=True)

    assert screen(output) == ["[2] whole", "[1] loading …", "[0] 2 %"]


def test_rows_of_unfinished_log_lines_fit_on_the_terminal():
    lines = [part(f"{'x' * 500}\t\x1b[1m{n}", n) for n in range(50)]

    output = printed(lines, several=True, terminal=True, close=False)

    rows = screen(output)
    # The terminal has 40 columns and 10 rows; the cursor needs the last of each.
    assert len(rows) == 9
    assert max(map(len, rows)) == 39


def printed(
    lines: list[LogLine], *, several: bool = False, terminal: bool = False, close: bool = True
) -> str:
    """Return the text that a printer writes for a stream, with a terminal of 40 by 10."""
    pieces: list[str] = []
    size = (lambda: (40, 10)) if terminal else None
    printer = LogPrinter(pieces.append, several=several, terminal=size)
    for line in lines:
        printer.print(line)
    if close:
        printer.close()
    return "".join(pieces)


def screen(written: str) -> list[str]:
    """Return the rows of a terminal that knows "up N rows" and "erase below"."""
    rows: list[str] = []
    for piece in written.replace("\x1b[J", "").split("\x1b["):
        up, moved, text = piece.partition("F")
        if moved and up.isdigit():
            del rows[len(rows) - int(up) :]
        else:
            text = piece
        rows += text.splitlines()
    return rows
