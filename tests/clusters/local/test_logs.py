"""Reading of a worker's output from files that come and go meanwhile."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from runai.hub_service.clusters.local.files.worker_log import WorkerLog
from runai.hub_service.clusters.local.supervisor.supervisor import HEAD_BYTES, Log
from runai.hub_service.model.cluster import MAX_LINE_BYTES
from runai.hub_service.wire.program_schemas import MissingOutput


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    return tmp_path


def append(job_dir: Path, *, attempt: int, file: int, text: str) -> Path:
    """Append to one file of worker 0."""
    folder = job_dir / f"attempt-{attempt}" / "worker-0"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"log-{file:06d}.txt"
    with path.open("a") as opened:
        opened.write(text)
    return path


def read(log: WorkerLog) -> list[tuple[int, str]]:
    """Return all output that can be read now: pairs of an attempt's number and text."""
    chunks = []
    while (chunk := log.next_chunk()) is not None:
        chunks.append((chunk.attempt, chunk.lines.decode() or str(chunk.missing)))
    return chunks


GAP_OF_UNKNOWN_SIZE = (1, str(MissingOutput()))


def test_log_without_files_has_no_output(job_dir):
    log = WorkerLog(job_dir, 0)

    assert (read(log), log.rest()) == ([], None)


def test_log_is_read_in_the_order_of_attempts_and_files(job_dir):
    for attempt, number in [(2, 1), (10, 1), (1, 2), (1, 1)]:
        append(job_dir, attempt=attempt, file=number, text=f"{attempt}.{number}\n")

    assert read(WorkerLog(job_dir, 0)) == [(1, "1.1\n"), (1, "1.2\n"), (2, "2.1\n"), (10, "10.1\n")]


@pytest.mark.parametrize(
    ("tail", "texts"),
    [
        pytest.param(None, ["a\n", "b\nc\n"], id="all"),
        pytest.param(2, ["b\nc\n"], id="last two"),
        pytest.param(3, ["a\n", "b\nc\n"], id="more than the last file has"),
        pytest.param(0, [], id="none"),
    ],
)
def test_log_read_ends_at_its_end_mark_while_lines_are_appended(job_dir, tail, texts):
    append(job_dir, attempt=1, file=1, text="a\n")
    append(job_dir, attempt=1, file=2, text="b\nc\n")
    log = WorkerLog(job_dir, 0)
    log.end_here()
    append(job_dir, attempt=1, file=2, text="later\n")
    append(job_dir, attempt=1, file=3, text="later still\n")
    if tail is not None:
        log.skip_to_last(tail)

    assert read(log) == [(1, text) for text in texts]
    assert log.rest() is None


def test_log_read_that_ends_at_an_empty_log_ignores_later_lines(job_dir):
    log = WorkerLog(job_dir, 0)
    log.end_here()
    append(job_dir, attempt=1, file=1, text="much\n")
    log.skip_to_last(5)

    assert (read(log), log.rest()) == ([], None)


def test_log_ends_with_a_gap_if_its_last_file_is_removed_unread(job_dir):
    last_file = append(job_dir, attempt=1, file=1, text="a\n")
    log = WorkerLog(job_dir, 0)
    log.end_here()
    append(job_dir, attempt=1, file=2, text="b\n")
    last_file.unlink()

    assert read(log) == []
    rest = log.rest()
    assert rest is not None
    assert (rest.missing, log.rest()) == (MissingOutput(), None)


def test_log_reader_returns_appended_lines_once(job_dir):
    log = WorkerLog(job_dir, 0)
    append(job_dir, attempt=1, file=1, text="a\n")
    assert read(log) == [(1, "a\n")]
    assert read(log) == []
    append(job_dir, attempt=1, file=1, text="b\n")
    append(job_dir, attempt=1, file=2, text="c\n")
    assert read(log) == [(1, "b\n"), (1, "c\n")]
    append(job_dir, attempt=2, file=1, text="d\n")
    assert read(log) == [(2, "d\n")]


def test_log_line_is_read_when_it_is_complete_even_over_two_files(job_dir):
    log = WorkerLog(job_dir, 0)
    append(job_dir, attempt=1, file=1, text="begin ")
    assert read(log) == []
    append(job_dir, attempt=1, file=2, text="end\n")

    assert read(log) == [(1, "begin end\n")]


def test_unfinished_log_line_of_an_attempt_is_ended_by_the_next_attempt(job_dir):
    log = WorkerLog(job_dir, 0)
    append(job_dir, attempt=1, file=1, text="killed in mid-sen")
    assert read(log) == []
    append(job_dir, attempt=2, file=1, text="again\n")

    assert read(log) == [(1, "killed in mid-sen\n"), (2, "again\n")]


def test_unfinished_last_log_line_is_returned_once(job_dir):
    log = WorkerLog(job_dir, 0)
    append(job_dir, attempt=1, file=1, text="no newline")
    assert read(log) == []

    rest = log.rest()
    assert rest is not None
    assert (rest.lines, log.rest()) == (b"no newline\n", None)


@pytest.mark.parametrize("next_file", [2, 3])
def test_half_a_log_line_is_part_of_the_gap_in_logs_of_an_older_supervisor(job_dir, next_file):
    log = WorkerLog(job_dir, 0)
    removed_file = append(job_dir, attempt=1, file=1, text="a\nhalf of b")
    assert read(log) == [(1, "a\n")]
    removed_file.unlink()
    append(job_dir, attempt=1, file=next_file, text="c\n")

    assert read(log) == [GAP_OF_UNKNOWN_SIZE, (1, "c\n")]


# -- missing output ------------------------------------------------------------------------------


LINE_BYTES = 10
TWO_LINE_FILES = {"file_bytes": 2 * LINE_BYTES, "newest_files": 2}


class LogWriter:
    """Output as the supervisor writes it: a first file that stays, and the newest ones."""

    def __init__(self, job_dir: Path, *, file_bytes: int, newest_files: int) -> None:
        folder = job_dir / "attempt-1" / "worker-0"
        folder.mkdir(parents=True)
        self._log = Log(str(folder), file_bytes, newest_files)

    def prints(self, *pieces: str) -> None:
        """Write each piece as one block."""
        for piece in pieces:
            self._log.write(piece.encode())


def line_range(first: int, last: int) -> list[str]:
    """Return numbered lines of ten bytes."""
    return [f"line {n:>4}\n" for n in range(first, last + 1)]


def gap(lines: int, size: int) -> tuple[int, str]:
    return 1, str(MissingOutput(lines=lines, bytes=size))


def lines_and_gaps(log: WorkerLog) -> list[tuple[int, str]]:
    """Return all output up to the end of the job: one line or gap each."""
    chunks = read(log)
    while (rest := log.rest()) is not None:
        chunks.append((1, rest.lines.decode() or str(rest.missing)))
    return [(n, line) for n, text in chunks for line in text.splitlines(keepends=True)]


def of_attempt_1(lines_and_gaps: Sequence[Any]) -> list[tuple[int, str]]:
    """Return lines with their attempt; gaps have it already."""
    return [piece if isinstance(piece, tuple) else (1, piece) for piece in lines_and_gaps]


GAP_OF_14 = gap(lines=14, size=140)
PROGRAM_OUTPUTS = {
    "no gap": (line_range(1, 6), [*line_range(1, 6)]),
    "gap in the middle": (line_range(1, 20), [*line_range(1, 2), GAP_OF_14, *line_range(17, 20)]),
    "smallest gap": (
        line_range(1, 8)[:-1],
        [*line_range(1, 2), gap(lines=2, size=20), *line_range(5, 7)],
    ),
    "line that began in a removed file": (
        [*line_range(1, 5), "abc", "defghijk\n", *line_range(6, 8)],
        [*line_range(1, 2), gap(lines=4, size=42), *line_range(6, 8)],
    ),
    "line of two retained files": (
        [*line_range(1, 3), "abcdefghij", "klm\n", "n\n"],
        [*line_range(1, 3), "abcdefghijklm\n", "n\n"],
    ),
    "line longer than a file at the beginning": (
        ["12345", "67890", "12345", "67890", "and on\n", *line_range(1, 6)],
        [gap(lines=4, size=57), *line_range(4, 6)],
    ),
}


@pytest.mark.parametrize(("printed", "expected"), PROGRAM_OUTPUTS.values(), ids=PROGRAM_OUTPUTS)
def test_log_shows_its_first_and_newest_lines_and_the_size_of_the_gap(job_dir, printed, expected):
    LogWriter(job_dir, **TWO_LINE_FILES).prints(*printed)

    assert lines_and_gaps(WorkerLog(job_dir, 0)) == of_attempt_1(expected)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param(3, line_range(18, 20), id="fewer than behind the gap"),
        pytest.param(4, line_range(17, 20), id="all lines behind the gap"),
        pytest.param(5, [*line_range(2, 2), GAP_OF_14, *line_range(17, 20)], id="gap within"),
        pytest.param(99, [*line_range(1, 2), GAP_OF_14, *line_range(17, 20)], id="whole log"),
    ],
)
def test_log_tail_includes_a_gap_only_if_it_lies_within_the_tail(job_dir, tail, expected):
    LogWriter(job_dir, **TWO_LINE_FILES).prints(*line_range(1, 20))
    log = WorkerLog(job_dir, 0)

    log.skip_to_last(tail)

    assert lines_and_gaps(log) == of_attempt_1(expected)


def test_log_tail_includes_a_line_of_two_files_once(job_dir):
    LogWriter(job_dir, **TWO_LINE_FILES).prints(*line_range(1, 3), "abcdefghij", "klm\n", "n\n")
    log = WorkerLog(job_dir, 0)

    log.skip_to_last(3)

    expected = [*line_range(3, 3), "abcdefghijklm\n", "n\n"]
    assert lines_and_gaps(log) == of_attempt_1(expected)


@pytest.mark.parametrize("tail", [None, 0, 1, 2], ids=lambda tail: f"tail {tail}")
@pytest.mark.parametrize("half_line", ["", "half a li"], ids=["whole lines", "half a line"])
def test_slow_log_follower_gets_the_size_of_the_gap_it_missed(job_dir, tail, half_line):
    program = LogWriter(job_dir, **TWO_LINE_FILES)
    program.prints(*line_range(1, 5), half_line)
    log = WorkerLog(job_dir, 0)
    if tail is not None:
        log.skip_to_last(tail)
    read(log)
    program.prints("ne\n" if half_line else "", *line_range(6, 30))

    first, *rest = read(log)

    # The gap has lines 6 to 26, and the unfinished line: a tail of 0 begins behind its first half.
    cut_line_bytes = len(half_line if tail != 0 else "") + len("ne\n") if half_line else 0
    assert first == gap(lines=21 + bool(half_line), size=210 + cut_line_bytes)
    assert rest[0][1].startswith("line   27")


def test_log_read_ends_with_a_gap_if_newer_lines_replaced_its_last_file(job_dir):
    program = LogWriter(job_dir, **TWO_LINE_FILES)
    program.prints(*line_range(1, 5))
    log = WorkerLog(job_dir, 0)
    log.end_here()
    program.prints(*line_range(6, 30))

    expected = [*line_range(1, 2), gap(lines=24, size=240)]
    assert lines_and_gaps(log) == of_attempt_1(expected)


def test_first_mebibyte_of_log_output_of_an_attempt_is_retained(job_dir):
    program = LogWriter(job_dir, file_bytes=10 * HEAD_BYTES, newest_files=1)
    output, block_bytes = "".join(line_range(1, 3000)) * 1200, 65_536  # 36 MB: more than both files
    starts = range(0, len(output), block_bytes)
    program.prints(*(output[begin : begin + block_bytes] for begin in starts))

    folder = job_dir / "attempt-1" / "worker-0"
    first, newest = sorted(folder.iterdir())

    assert 0 <= HEAD_BYTES - first.stat().st_size < LINE_BYTES
    assert newest.stat().st_size <= 10 * HEAD_BYTES
    assert first.read_text() == output[: first.stat().st_size]


@pytest.mark.parametrize("parts", [False, True], ids=["whole lines", "parts"])
@pytest.mark.parametrize("seed", range(100))
def test_log_lines_are_read_whole_or_are_part_of_a_gap_at_any_time(job_dir, seed, parts):
    rng = Random(seed)
    program = LogWriter(job_dir, file_bytes=rng.randint(20, 60), newest_files=rng.randint(1, 3))
    log, printed, chunks = WorkerLog(job_dir, 0, parts=parts), "", []
    for number in range(rng.randint(1, 100)):
        line = f"{number}:{'x' * rng.randint(0, 80)}\n"
        position = rng.randint(0, len(line))
        for piece in (line[:position], line[position:]):
            program.prints(piece)
            while rng.random() < 0.3 and (chunk := log.next_chunk()) is not None:
                chunks.append(chunk)
        printed += line
    while (chunk := log.next_chunk() or log.rest()) is not None:
        chunks.append(chunk)

    position = 0
    for chunk in chunks:
        if (missing := chunk.missing) is None:
            assert chunk.lines.decode() == printed[position : position + len(chunk.lines)]
            assert parts or chunk.lines.endswith(b"\n")
            position += len(chunk.lines)
        else:
            assert missing.bytes is not None
            assert printed[position : position + missing.bytes].count("\n") == missing.lines
            position += missing.bytes
            assert printed[position - 1] == "\n"
    assert position == len(printed)


# -- unfinished lines ----------------------------------------------------------------------------


def texts_and_part_flags(log: WorkerLog) -> list[tuple[bytes, bool]]:
    """Return all output that can be read now: lines, and whether they are a part of one."""
    chunks = []
    while (chunk := log.next_chunk()) is not None:
        chunks.append((chunk.lines, chunk.is_part))
    return chunks


def test_unfinished_log_line_is_read_in_parts_as_it_is_written(job_dir):
    log = WorkerLog(job_dir, 0, parts=True)
    assert texts_and_part_flags(log) == []
    append(job_dir, attempt=1, file=1, text="begun\n1 %\r")
    assert texts_and_part_flags(log) == [(b"begun\n", False), (b"1 %\r", True)]
    assert texts_and_part_flags(log) == []
    append(job_dir, attempt=1, file=1, text="2 %\r")
    append(job_dir, attempt=1, file=2, text="3 %")
    assert texts_and_part_flags(log) == [(b"2 %\r3 %", True)]
    append(job_dir, attempt=1, file=2, text="\ndone\nkilled in mid-sen")
    assert texts_and_part_flags(log) == [(b"\ndone\n", False), (b"killed in mid-sen", True)]
    append(job_dir, attempt=2, file=1, text="again\n")
    assert texts_and_part_flags(log) == [(b"\n", False), (b"again\n", False)]
    assert log.rest() is None


def test_part_of_an_unfinished_log_line_ends_between_characters(job_dir):
    log = WorkerLog(job_dir, 0, parts=True)
    path = append(job_dir, attempt=1, file=1, text="")
    parts = []
    for byte in "aé€😀".encode() + b"\xff\xff\xff\xff\n":
        with path.open("ab") as file:
            file.write(bytes([byte]))
        parts += texts_and_part_flags(log)

    letters = [b"a", "é".encode(), "€".encode(), "😀".encode()]
    assert parts[:4] == [(letter, True) for letter in letters]
    assert b"".join(text for text, _ in parts[4:]) == b"\xff\xff\xff\xff\n"


def test_log_line_of_megabytes_read_in_parts_is_split_at_the_max_line_length(job_dir):
    log = WorkerLog(job_dir, 0, parts=True)
    output = b""
    for _ in range(25):
        append(job_dir, attempt=1, file=1, text="x" * 100_000)
        output += b"".join(text for text, _ in texts_and_part_flags(log))

    pieces = output.split(b"\n")
    assert sum(map(len, pieces)) == 2_500_000
    assert max(map(len, pieces)) <= MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("line_count", "expected"),
    [
        (0, ""),
        (1, "e\n"),
        (2, "d\ne\n"),
        (3, "c\nd\ne\n"),
        (5, "a\nb\nc\nd\ne\n"),
        (9, "a\nb\nc\nd\ne\n"),
    ],
)
def test_log_tail_reaches_back_over_files_and_attempts(job_dir, line_count, expected):
    append(job_dir, attempt=1, file=1, text="a\nb\n")
    append(job_dir, attempt=1, file=2, text="c\n")
    append(job_dir, attempt=2, file=1, text="d\ne\n")
    log = WorkerLog(job_dir, 0)

    log.skip_to_last(line_count)

    assert expected == "".join(text for _, text in read(log))


@pytest.mark.parametrize("line_count", [1, 3, 100_000])
def test_log_tail_begins_with_a_whole_line_at_any_block_boundary(job_dir, line_count):
    append(job_dir, attempt=1, file=1, text="".join(f"{n}\n" for n in range(200_000)))
    last_lines = "".join(f"{n}\n" for n in range(200_000, 300_000))
    append(job_dir, attempt=1, file=2, text=last_lines + "not at its end")
    log = WorkerLog(job_dir, 0)

    log.skip_to_last(line_count)
    tail = "".join(text for _, text in read(log)).splitlines()

    # The unfinished line at the end counts as the last one; it is left to `rest`.
    first_number = max(0, 300_001 - line_count)
    assert len(tail) == 300_000 - first_number
    assert tail[:1] == ([str(first_number)] if line_count > 1 else [])
    rest = log.rest()
    assert rest is not None
    assert rest.lines == b"not at its end\n"


@pytest.mark.parametrize("text", ["x", "\n", "\0", "ab\n"], ids=["no end", "ends", "NUL", "short"])
def test_log_of_ten_megabytes_is_read_in_little_memory(job_dir, text):
    append(job_dir, attempt=1, file=1, text=text * (10_000_000 // len(text)))
    log = WorkerLog(job_dir, 0)
    tracemalloc.start()
    try:
        log.skip_to_last(1000)
        log = WorkerLog(job_dir, 0)
        size = 0
        while (chunk := log.next_chunk()) is not None:
            assert len(chunk.lines) <= 2 * MAX_LINE_BYTES
            size += len(chunk.lines.replace(b"\n", b""))
        if (rest := log.rest()) is not None and text in "x\0":
            size += len(rest.lines) - 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert size == len((text * (10_000_000 // len(text))).replace("\n", ""))
    assert peak < 8 * MAX_LINE_BYTES


def test_log_tail_of_zero_lines_reads_only_new_lines(job_dir):
    append(job_dir, attempt=1, file=1, text="old\n")
    log = WorkerLog(job_dir, 0)
    log.skip_to_last(0)
    append(job_dir, attempt=1, file=1, text="new\n")

    assert read(log) == [(1, "new\n")]
