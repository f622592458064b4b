"""Reading of a worker's output from files that come and go meanwhile."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import pytest

from runai.hub_service.clusters.local.files.worker_log import WorkerLog
from runai.hub_service.clusters.local.supervisor.supervisor import HEAD_BYTES, Log
from runai.hub_service.model.cluster import MAX_LINE_BYTES
from runai.hub_service.wire.program_schemas import MissingOutput


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path


def write(job: Path, attempt: int, number: int, text: str) -> Path:
    """Append to one file of worker 0."""
    folder = job / f"attempt-{attempt}" / "worker-0"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"log-{number:06d}.txt"
    with path.open("a") as file:
        file.write(text)
    return path


def read(log: WorkerLog) -> list[tuple[int, str]]:
    """Return all output that can be read now: attempt and text."""
    chunks = []
    while (chunk := log.next_chunk()) is not None:
        chunks.append((chunk.attempt, chunk.lines.decode() or str(chunk.missing)))
    return chunks


DISCARDED = (1, str(MissingOutput()))


def test_log_without_files_has_no_output(job):
    log = WorkerLog(job, 0)

    assert (read(log), log.rest()) == ([], None)


def test_log_is_read_in_the_order_of_attempts_and_files(job):
    for attempt, number in [(2, 1), (10, 1), (1, 2), (1, 1)]:
        write(job, attempt, number, f"{attempt}.{number}\n")

    assert read(WorkerLog(job, 0)) == [(1, "1.1\n"), (1, "1.2\n"), (2, "2.1\n"), (10, "10.1\n")]


@pytest.mark.parametrize(
    ("tail", "texts"),
    [
        pytest.param(None, ["a\n", "b\nc\n"], id="all"),
        pytest.param(2, ["b\nc\n"], id="the last two"),
        pytest.param(3, ["a\n", "b\nc\n"], id="more than the last file has"),
        pytest.param(0, [], id="none"),
    ],
)
def test_log_read_ends_at_its_end_mark_while_lines_are_appended(job, tail, texts):
    write(job, 1, 1, "a\n")
    write(job, 1, 2, "b\nc\n")
    log = WorkerLog(job, 0)
    log.end_here()
    write(job, 1, 2, "more of it\n")
    write(job, 1, 3, "and more\n")
    if tail is not None:
        log.skip_to_last(tail)

    assert read(log) == [(1, text) for text in texts]
    assert log.rest() is None


def test_log_read_that_ends_at_an_empty_log_ignores_later_lines(job):
    log = WorkerLog(job, 0)
    log.end_here()
    write(job, 1, 1, "much\n")
    log.skip_to_last(5)

    assert (read(log), log.rest()) == ([], None)


def test_log_ends_with_a_gap_if_its_last_file_is_removed_unread(job):
    ends = write(job, 1, 1, "a\n")
    log = WorkerLog(job, 0)
    log.end_here()
    write(job, 1, 2, "b\n")
    ends.unlink()

    assert read(log) == []
    rest = log.rest()
    assert rest is not None
    assert (rest.missing, log.rest()) == (MissingOutput(), None)


def test_log_reader_returns_appended_lines_once(job):
    log = WorkerLog(job, 0)
    write(job, 1, 1, "a\n")
    assert read(log) == [(1, "a\n")]
    assert read(log) == []
    write(job, 1, 1, "b\n")
    write(job, 1, 2, "c\n")
    assert read(log) == [(1, "b\n"), (1, "c\n")]
    write(job, 2, 1, "d\n")
    assert read(log) == [(2, "d\n")]


def test_log_line_is_read_when_it_is_complete_even_over_two_files(job):
    log = WorkerLog(job, 0)
    write(job, 1, 1, "begin ")
    assert read(log) == []
    write(job, 1, 2, "end\n")

    assert read(log) == [(1, "begin end\n")]


def test_unfinished_log_line_of_an_attempt_is_ended_by_the_next_attempt(job):
    log = WorkerLog(job, 0)
    write(job, 1, 1, "killed in mid-sen")
    assert read(log) == []
    write(job, 2, 1, "again\n")

    assert read(log) == [(1, "killed in mid-sen\n"), (2, "again\n")]


def test_unfinished_last_log_line_is_returned_once(job):
    log = WorkerLog(job, 0)
    write(job, 1, 1, "no newline")
    assert read(log) == []

    rest = log.rest()
    assert rest is not None
    assert (rest.lines, log.rest()) == (b"no newline\n", None)


@pytest.mark.parametrize("next_file", [2, 3])
def test_half_a_log_line_is_part_of_the_gap_in_logs_of_an_older_supervisor(job, next_file):
    log = WorkerLog(job, 0)
    going = write(job, 1, 1, "a\nhalf of b")
    assert read(log) == [(1, "a\n")]
    going.unlink()
    write(job, 1, next_file, "c\n")

    assert read(log) == [DISCARDED, (1, "c\n")]


# -- missing output ------------------------------------------------------------------------------


class Program:
    """A program whose output the supervisor writes, to small files of which it keeps the newest."""

    def __init__(self, job: Path, *, bytes_: int = 20, files: int = 2) -> None:
        folder = job / "attempt-1" / "worker-0"
        folder.mkdir(parents=True)
        self._log = Log(str(folder), bytes_, files)

    def prints(self, *pieces: str) -> None:
        """Write each piece as one block."""
        for piece in pieces:
            self._log.write(piece.encode())


def lines(first: int, last: int) -> list[str]:
    """Return numbered lines of ten bytes."""
    return [f"line {n:>4}\n" for n in range(first, last + 1)]


def gap(count: int, size: int) -> tuple[int, str]:
    return 1, str(MissingOutput(lines=count, bytes=size))


def lines_and_gaps(log: WorkerLog) -> list[tuple[int, str]]:
    """Return all output up to the end of the job: one line or gap each."""
    chunks = read(log)
    while (rest := log.rest()) is not None:
        chunks.append((1, rest.lines.decode() or str(rest.missing)))
    return [(n, line) for n, text in chunks for line in text.splitlines(keepends=True)]


WRITTEN = {
    "nothing is missing": (lines(1, 6), [*lines(1, 6)]),
    "the middle": (lines(1, 20), [*lines(1, 2), gap(14, 140), *lines(17, 20)]),
    "one line": (lines(1, 8)[:-1], [*lines(1, 2), gap(2, 20), *lines(5, 7)]),
    "a line that began in a file that is gone": (
        [*lines(1, 5), "abc", "defghijk\n", *lines(6, 8)],
        [*lines(1, 2), gap(4, 42), *lines(6, 8)],
    ),
    "a line of two files that are kept": (
        [*lines(1, 3), "abcdefghij", "klm\n", "n\n"],
        [*lines(1, 3), "abcdefghijklm\n", "n\n"],
    ),
    "an unfinished line at the beginning": (
        ["12345", "67890", "12345", "67890", "and on\n", *lines(1, 6)],
        [gap(4, 57), *lines(4, 6)],
    ),
}


@pytest.mark.parametrize(("written", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_log_shows_its_first_and_newest_lines_and_the_size_of_the_gap(job, written, expected):
    Program(job).prints(*written)

    assert lines_and_gaps(WorkerLog(job, 0)) == [
        x if isinstance(x, tuple) else (1, x) for x in expected
    ]


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        pytest.param(3, lines(18, 20), id="behind the gap"),
        pytest.param(4, lines(17, 20), id="all behind the gap"),
        pytest.param(5, [*lines(2, 2), gap(14, 140), *lines(17, 20)], id="around the gap"),
        pytest.param(99, [*lines(1, 2), gap(14, 140), *lines(17, 20)], id="more than there is"),
    ],
)
def test_log_tail_includes_a_gap_only_if_it_lies_within_the_tail(job, tail, expected):
    Program(job).prints(*lines(1, 20))
    log = WorkerLog(job, 0)

    log.skip_to_last(tail)

    assert lines_and_gaps(log) == [x if isinstance(x, tuple) else (1, x) for x in expected]


def test_log_tail_includes_a_line_of_two_files_once(job):
    Program(job).prints(*lines(1, 3), "abcdefghij", "klm\n", "n\n")
    log = WorkerLog(job, 0)

    log.skip_to_last(3)

    assert lines_and_gaps(log) == [(1, x) for x in [*lines(3, 3), "abcdefghijklm\n", "n\n"]]


@pytest.mark.parametrize("tail", [None, 0, 1, 2], ids=lambda tail: f"tail {tail}")
@pytest.mark.parametrize("half", ["", "half a li"], ids=["whole lines", "half a line"])
def test_slow_log_follower_gets_the_size_of_the_gap_it_missed(job, tail, half):
    program = Program(job)
    program.prints(*lines(1, 5), half)
    log = WorkerLog(job, 0)
    if tail is not None:
        log.skip_to_last(tail)
    read(log)
    program.prints("ne\n" if half else "", *lines(6, 30))
    lacks = len(half if tail != 0 else "") + 3 if half else 0

    first, *rest = read(log)

    assert first == gap(21 + bool(lacks), 210 + lacks)
    assert rest[0][1].startswith("line   27")


def test_log_read_ends_with_a_gap_if_newer_lines_replaced_its_last_file(job):
    program = Program(job)
    program.prints(*lines(1, 5))
    log = WorkerLog(job, 0)
    log.end_here()
    program.prints(*lines(6, 30))

    assert lines_and_gaps(log) == [*((1, line) for line in lines(1, 2)), gap(24, 240)]


def test_first_mebibyte_of_log_output_of_an_attempt_is_retained(job):
    program = Program(job, bytes_=10 * HEAD_BYTES, files=1)
    many = "".join(lines(1, 3000)) * 1200
    program.prints(*(many[at : at + 65536] for at in range(0, len(many), 65536)))

    folder = job / "attempt-1" / "worker-0"
    first, newest = sorted(folder.iterdir())

    assert 0 <= HEAD_BYTES - first.stat().st_size < 10
    assert newest.stat().st_size <= 10 * HEAD_BYTES
    assert first.read_text() == many[: first.stat().st_size]


@pytest.mark.parametrize("parts", [False, True], ids=["whole lines", "parts"])
@pytest.mark.parametrize("seed", range(100))
def test_log_lines_are_read_whole_or_are_part_of_a_gap_at_any_time(job, seed, parts):
    dice = Random(seed)
    program = Program(job, bytes_=dice.randint(20, 60), files=dice.randint(1, 3))
    log, written, chunks = WorkerLog(job, 0, parts=parts), "", []
    for number in range(dice.randint(1, 100)):
        line = f"{number}:{'x' * dice.randint(0, 80)}\n"
        at = dice.randint(0, len(line))
        for piece in (line[:at], line[at:]):
            program.prints(piece)
            while dice.random() < 0.3 and (chunk := log.next_chunk()) is not None:
                chunks.append(chunk)
        written += line
    while (chunk := log.next_chunk() or log.rest()) is not None:
        chunks.append(chunk)

    at = 0
    for chunk in chunks:
        if (missing := chunk.missing) is None:
            assert chunk.lines.decode() == written[at : at + len(chunk.lines)]
            assert parts or chunk.lines.endswith(b"\n")
            at += len(chunk.lines)
        else:
            assert missing.bytes is not None
            assert written[at : at + missing.bytes].count("\n") == missing.lines
            at += missing.bytes
            assert written[at - 1] == "\n"
    assert at == len(written)


# -- unfinished lines ----------------------------------------------------------------------------


def parts_of(log: WorkerLog) -> list[tuple[bytes, bool]]:
    """Return all output that can be read now: lines, and whether they are a part of one."""
    chunks = []
    while (chunk := log.next_chunk()) is not None:
        chunks.append((chunk.lines, chunk.is_part))
    return chunks


def test_unfinished_log_line_is_read_in_parts_as_it_is_written(job):
    log = WorkerLog(job, 0, parts=True)
    assert parts_of(log) == []
    write(job, 1, 1, "begun\n1 %\r")
    assert parts_of(log) == [(b"begun\n", False), (b"1 %\r", True)]
    assert parts_of(log) == []
    write(job, 1, 1, "2 %\r")
    write(job, 1, 2, "3 %")
    assert parts_of(log) == [(b"2 %\r3 %", True)]
    write(job, 1, 2, "\ndone\nkilled in mid-sen")
    assert parts_of(log) == [(b"\ndone\n", False), (b"killed in mid-sen", True)]
    write(job, 2, 1, "again\n")
    assert parts_of(log) == [(b"\n", False), (b"again\n", False)]
    assert log.rest() is None


def test_part_of_an_unfinished_log_line_ends_between_characters(job):
    log = WorkerLog(job, 0, parts=True)
    path = write(job, 1, 1, "")
    parts = []
    for byte in "aé€😀".encode() + b"\xff\xff\xff\xff\n":
        with path.open("ab") as file:
            file.write(bytes([byte]))
        parts += parts_of(log)

    letters = [b"a", "é".encode(), "€".encode(), "😀".encode()]
    assert parts[:4] == [(letter, True) for letter in letters]
    assert b"".join(lines for lines, _ in parts[4:]) == b"\xff\xff\xff\xff\n"


def test_log_line_of_megabytes_read_in_parts_is_split_at_the_max_line_length(job):
    log = WorkerLog(job, 0, parts=True)
    output = b""
    for _ in range(25):
        write(job, 1, 1, "x" * 100_000)
        output += b"".join(lines for lines, _ in parts_of(log))

    pieces = output.split(b"\n")
    assert sum(map(len, pieces)) == 2_500_000
    assert max(map(len, pieces)) <= MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (0, ""),
        (1, "e\n"),
        (2, "d\ne\n"),
        (3, "c\nd\ne\n"),
        (5, "a\nb\nc\nd\ne\n"),
        (9, "a\nb\nc\nd\ne\n"),
    ],
)
def test_log_tail_reaches_back_over_files_and_attempts(job, lines, expected):
    write(job, 1, 1, "a\nb\n")
    write(job, 1, 2, "c\n")
    write(job, 2, 1, "d\ne\n")
    log = WorkerLog(job, 0)

    log.skip_to_last(lines)

    assert expected == "".join(text for _, text in read(log))


@pytest.mark.parametrize("lines", [1, 3, 100_000])
def test_log_tail_begins_with_a_whole_line_at_any_block_boundary(job, lines):
    write(job, 1, 1, "".join(f"{n}\n" for n in range(200_000)))
    write(job, 1, 2, "".join(f"{n}\n" for n in range(200_000, 300_000)) + "not at its end")
    log = WorkerLog(job, 0)

    log.skip_to_last(lines)
    tail = "".join(text for _, text in read(log)).splitlines()

    expected = max(0, 300_001 - lines)
    assert (tail[0] if tail else "", len(tail)) == (
        (str(expected), 300_000 - expected) if lines > 1 else ("", 0)
    )
    rest = log.rest()
    assert rest is not None
    assert rest.lines == b"not at its end\n"


@pytest.mark.parametrize("text", ["x", "\n", "\0", "ab\n"], ids=["no end", "ends", "NUL", "short"])
def test_log_of_ten_megabytes_is_read_in_little_memory(job, text):
    write(job, 1, 1, text * (10_000_000 // len(text)))
    log = WorkerLog(job, 0)
    tracemalloc.start()
    try:
        log.skip_to_last(1000)
        log = WorkerLog(job, 0)
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


def test_log_tail_of_zero_lines_reads_only_new_lines(job):
    write(job, 1, 1, "old\n")
    log = WorkerLog(job, 0)
    log.skip_to_last(0)
    write(job, 1, 1, "new\n")

    assert read(log) == [(1, "new\n")]
