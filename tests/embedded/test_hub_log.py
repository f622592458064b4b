"""The log of the embedded platform: its size and the length of its lines are bounded."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.embedded.hub_log import HubLines, rotate

MOST, FILES = 100, 4
KEPT = MOST * (FILES - 1)


def parts(log: Path) -> list[Path]:
    """Return the parts of a log, oldest first, the log itself last."""
    found = [log.with_name(f"{log.name}.{number}") for number in range(2 * FILES, 0, -1)]
    return [path for path in [*found, log] if path.exists()]


@given(st.lists(st.integers(0, 2 * KEPT)))
def test_parts_are_the_end_of_what_was_written_and_of_bounded_size(writes: list[int]):
    with TemporaryDirectory() as folder:
        log, written, largest = Path(folder) / "hub.log", b"", 0
        writer = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, size in enumerate(writes):
            piece = bytes([65 + number % 26]) * size
            os.write(writer, piece)
            largest, written = max(largest, size), written + piece
            rotate(log, MOST, FILES)

            found = [path.read_bytes() for path in parts(log)]
            assert written.endswith(b"".join(found))
            assert sum(map(len, found)) <= KEPT + MOST
            assert len(found) <= FILES
            assert log.stat().st_size <= MOST
        os.close(writer)
        assert {path.name for path in Path(folder).iterdir()} == {p.name for p in parts(log)}


@given(st.lists(st.integers(1, MOST)))
def test_nothing_is_dropped_that_there_is_room_for(writes: list[int]):
    with TemporaryDirectory() as folder:
        log, written = Path(folder) / "hub.log", 0
        for size in writes:
            with log.open("ab") as writer:
                writer.write(b"x" * size)
            rotate(log, MOST, FILES)
            written += size

        # Each part exceeds its bound by at most one write.
        assert sum(path.stat().st_size for path in parts(log)) >= min(written, KEPT - 2 * MOST)


def test_parts_are_private(tmp_path: Path):
    log = tmp_path / "hub.log"
    log.write_bytes(b"x" * (MOST + 1))
    before = os.umask(0)
    try:
        rotate(log, MOST, FILES)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "hub.log.1").stat().st_mode) == 0o600


def test_a_copy_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "hub.log"
    log.write_bytes(b"1" * (MOST + 1))
    rotate(log, MOST, FILES)
    log.write_bytes(b"2" * (MOST + 1))
    before = {path: path.read_bytes() for path in parts(log)}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runai.embedded.hub_log.shutil.copyfileobj", full)
    for _ in range(FILES):
        with pytest.raises(OSError, match="No space"):
            rotate(log, MOST, FILES)

    assert {path: path.read_bytes() for path in parts(log)} == before


@pytest.mark.parametrize(
    ("message", "logged"),
    [
        pytest.param("404 GET /hub/" + "A" * 60_000, "404 GET /hub/" + "A" * 194 + "…", id="long"),
        pytest.param("503 /x\x1b]0;owned\x07", r"503 /x\x1b]0;owned\x07", id="escapes"),
        pytest.param("503 /\x9b2J", r"503 /\x9b2J", id="8-bit control"),
        pytest.param("503 /\u202efdp", r"503 /\u202efdp", id="direction"),
        pytest.param("a\n[I forged", "a\n    [I forged", id="line"),
        pytest.param("a\r[I forged", r"a\r[I forged", id="carriage return"),
    ],
)
def test_lines_are_printable_and_bounded(message: str, logged: str):
    record = logging.LogRecord("EmbeddedHub", logging.WARNING, "", 0, message, (), None)

    assert HubLines(fmt="%(message)s").format(record) == logged
