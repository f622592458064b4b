"""Reading of a worker's output from files that come and go meanwhile."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from runai.hub_service.clusters.local.files.logs import WorkerLog
from runai.hub_service.model.cluster import LONGEST_LINE_BYTES


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
    found = []
    while (chunk := log.next_chunk()) is not None:
        found.append((chunk.attempt, chunk.lines.decode()))
    return found


def test_nothing_was_written_yet(job):
    log = WorkerLog(job, 0)

    assert (read(log), log.rest()) == ([], None)


def test_files_and_attempts_come_in_their_order(job):
    for attempt, number in [(2, 1), (10, 1), (1, 2), (1, 1)]:
        write(job, attempt, number, f"{attempt}.{number}\n")

    assert read(WorkerLog(job, 0)) == [(1, "1.1\n"), (1, "1.2\n"), (2, "2.1\n"), (10, "10.1\n")]


@pytest.mark.parametrize(
    ("tail", "told"),
    [
        pytest.param(None, ["a\n", "b\nc\n"], id="all"),
        pytest.param(2, ["b\nc\n"], id="the last two"),
        pytest.param(3, ["a\n", "b\nc\n"], id="more than the last file has"),
        pytest.param(0, [], id="none"),
    ],
)
def test_log_read_ends_at_its_mark_while_lines_are_appended(job, tail, told):
    write(job, 1, 1, "a\n")
    write(job, 1, 2, "b\nc\n")
    log = WorkerLog(job, 0)
    log.end_here()
    write(job, 1, 2, "more of it\n")
    write(job, 1, 3, "and more\n")
    if tail is not None:
        log.skip_to_last(tail)

    assert read(log) == [(1, text) for text in told]
    assert log.rest() is None


def test_nothing_is_there_and_then_much(job):
    log = WorkerLog(job, 0)
    log.end_here()
    write(job, 1, 1, "much\n")
    log.skip_to_last(5)

    assert (read(log), log.rest()) == ([], None)


def test_where_it_ends_may_have_gone_meanwhile(job):
    ends = write(job, 1, 1, "a\n")
    log = WorkerLog(job, 0)
    log.end_here()
    write(job, 1, 2, "b\n")
    ends.unlink()

    assert (read(log), log.rest()) == ([], None)


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


def test_a_line_waits_for_its_end_even_over_two_files(job):
    log = WorkerLog(job, 0)
    write(job, 1, 1, "begin ")
    assert read(log) == []
    write(job, 1, 2, "end\n")

    assert read(log) == [(1, "begin end\n")]


def test_an_unfinished_line_ends_with_its_attempt(job):
    log = WorkerLog(job, 0)
    write(job, 1, 1, "killed in mid-sen")
    assert read(log) == []
    write(job, 2, 1, "again\n")

    assert read(log) == [(1, "killed in mid-sen\n"), (2, "again\n")]


def test_the_rest_is_given_once(job):
    log = WorkerLog(job, 0)
    write(job, 1, 1, "no newline")
    assert read(log) == []

    rest = log.rest()
    assert rest is not None
    assert (rest.lines, log.rest()) == (b"no newline\n", None)


@pytest.mark.parametrize("next_file", [2, 3])
def test_halves_of_two_lines_are_not_told_as_one_where_a_file_has_gone(job, next_file):
    log = WorkerLog(job, 0)
    going = write(job, 1, 1, "a\nhalf of b")
    assert read(log) == [(1, "a\n")]
    going.unlink()
    write(job, 1, next_file, "c\n")

    assert read(log) == [(1, "half of b\n"), (1, "c\n")]


def test_a_file_that_has_gone_is_passed_over(job):
    log = WorkerLog(job, 0)
    first = write(job, 1, 1, "a\n")
    assert read(log) == [(1, "a\n")]
    first.unlink()
    write(job, 1, 3, "c\n")

    assert read(log) == [(1, "c\n")]


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
def test_a_tail_reaches_back_over_files_and_attempts(job, lines, expected):
    write(job, 1, 1, "a\nb\n")
    write(job, 1, 2, "c\n")
    write(job, 2, 1, "d\ne\n")
    log = WorkerLog(job, 0)

    log.skip_to_last(lines)

    assert expected == "".join(text for _, text in read(log))


@pytest.mark.parametrize("lines", [1, 3, 100_000])
def test_a_tail_begins_with_a_whole_line_wherever_a_block_ends(job, lines):
    write(job, 1, 1, "".join(f"{n}\n" for n in range(200_000)))
    write(job, 1, 2, "".join(f"{n}\n" for n in range(200_000, 300_000)) + "not at its end")
    log = WorkerLog(job, 0)

    log.skip_to_last(lines)
    found = "".join(text for _, text in read(log)).splitlines()

    expected = max(0, 300_001 - lines)
    assert (found[0] if found else "", len(found)) == (
        (str(expected), 300_000 - expected) if lines > 1 else ("", 0)
    )
    rest = log.rest()
    assert rest is not None
    assert rest.lines == b"not at its end\n"


@pytest.mark.parametrize("text", ["x", "\n", "\0", "ab\n"], ids=["no end", "ends", "NUL", "short"])
def test_ten_megabytes_of_anything_take_little_memory(job, text):
    write(job, 1, 1, text * (10_000_000 // len(text)))
    log = WorkerLog(job, 0)
    tracemalloc.start()
    try:
        log.skip_to_last(1000)
        log = WorkerLog(job, 0)
        told = 0
        while (chunk := log.next_chunk()) is not None:
            assert len(chunk.lines) <= 2 * LONGEST_LINE_BYTES
            told += len(chunk.lines.replace(b"\n", b""))
        if (rest := log.rest()) is not None and text in "x\0":
            told += len(rest.lines) - 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert told == len((text * (10_000_000 // len(text))).replace("\n", ""))
    assert peak < 8 * LONGEST_LINE_BYTES


def test_after_a_tail_of_nothing_only_what_is_new_is_read(job):
    write(job, 1, 1, "old\n")
    log = WorkerLog(job, 0)
    log.skip_to_last(0)
    write(job, 1, 1, "new\n")

    assert read(log) == [(1, "new\n")]
