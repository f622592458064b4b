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
from tornado.log import access_log, app_log, gen_log

from runai.embedded.hub_log import HubLogFormatter, bound_anonymous_lines, rotate
from runai.hub_service.processes.log_lines import MAX_ANONYMOUS_LINES, AnonymousLines

MAX_BYTES, MAX_FILES = 100, 4
HUB = logging.getLogger("hub")
SENT_LINES = 3 * MAX_ANONYMOUS_LINES
RETAINED_BYTES = MAX_BYTES * (MAX_FILES - 1)


def parts(log: Path) -> list[Path]:
    """Return the parts of a log, oldest first, the log itself last."""
    rotated = [log.with_name(f"{log.name}.{number}") for number in range(2 * MAX_FILES, 0, -1)]
    return [path for path in [*rotated, log] if path.exists()]


@given(st.lists(st.integers(0, 2 * RETAINED_BYTES)))
def test_rotated_hub_log_parts_are_a_bounded_tail_of_the_log(writes: list[int]):
    with TemporaryDirectory() as folder:
        log, written, largest = Path(folder) / "hub.log", b"", 0
        writer = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for number, size in enumerate(writes):
            piece = bytes([65 + number % 26]) * size
            os.write(writer, piece)
            largest, written = max(largest, size), written + piece
            rotate(log, MAX_BYTES, MAX_FILES)

            contents = [path.read_bytes() for path in parts(log)]
            assert written.endswith(b"".join(contents))
            assert sum(map(len, contents)) <= RETAINED_BYTES + MAX_BYTES
            assert len(contents) <= MAX_FILES
            assert log.stat().st_size <= MAX_BYTES
        os.close(writer)
        assert {path.name for path in Path(folder).iterdir()} == {p.name for p in parts(log)}


@given(st.lists(st.integers(1, MAX_BYTES)))
def test_hub_log_rotation_drops_no_data_below_the_size_limit(writes: list[int]):
    with TemporaryDirectory() as folder:
        log, written = Path(folder) / "hub.log", 0
        for size in writes:
            with log.open("ab") as writer:
                writer.write(b"x" * size)
            rotate(log, MAX_BYTES, MAX_FILES)
            written += size

        # Each part exceeds its bound by at most one write.
        assert sum(path.stat().st_size for path in parts(log)) >= min(
            written, RETAINED_BYTES - 2 * MAX_BYTES
        )


def test_rotated_hub_log_parts_are_readable_only_by_the_owner(tmp_path: Path):
    log = tmp_path / "hub.log"
    log.write_bytes(b"x" * (MAX_BYTES + 1))
    before = os.umask(0)
    try:
        rotate(log, MAX_BYTES, MAX_FILES)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "hub.log.1").stat().st_mode) == 0o600


def test_failed_copy_during_hub_log_rotation_loses_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    log = tmp_path / "hub.log"
    log.write_bytes(b"1" * (MAX_BYTES + 1))
    rotate(log, MAX_BYTES, MAX_FILES)
    log.write_bytes(b"2" * (MAX_BYTES + 1))
    before = {path: path.read_bytes() for path in parts(log)}

    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("runai.embedded.hub_log.shutil.copyfileobj", raise_disk_full)
    for _ in range(MAX_FILES):
        with pytest.raises(OSError, match="No space"):
            rotate(log, MAX_BYTES, MAX_FILES)

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
def test_hub_log_lines_are_printable_and_bounded(message: str, logged: str):
    record = logging.LogRecord("EmbeddedHub", logging.WARNING, "", 0, message, (), None)

    assert HubLogFormatter(fmt="%(message)s").format(record) == logged


# -- lines about anonymous requests ----------------------------------------------------------------


def test_hub_log_lines_of_anonymous_requests_are_limited_and_omissions_reported():
    now = 0.0
    lines = AnonymousLines(lambda record: " (@" in record.getMessage(), clock=lambda: now)

    def logged(user: str) -> str:
        line = f"302 GET /hub/%41 ({user}@10.0.0.9) 1.00ms"
        record = logging.LogRecord("access", logging.INFO, "", 0, line, (), None)
        return record.getMessage() if lines.filter(record) else ""

    burst = [logged("") for _ in range(MAX_ANONYMOUS_LINES + 7)]
    user_lines = [logged("ana") for _ in range(2 * MAX_ANONYMOUS_LINES)]
    now += 1.0
    after = [logged("") for _ in range(2)]
    now += 3600.0
    later = [logged("") for _ in range(MAX_ANONYMOUS_LINES + 1)]

    plain = "302 GET /hub/%41 (@10.0.0.9) 1.00ms"
    omission_note = " (before it, {} lines about requests without a login were omitted)"
    assert burst == [plain] * MAX_ANONYMOUS_LINES + [""] * 7
    assert all(user_lines)
    assert after == [plain + omission_note.format(7), ""]
    assert later == [plain + omission_note.format(1), *[plain] * (MAX_ANONYMOUS_LINES - 1), ""]


@pytest.mark.parametrize(
    ("log", "module", "level", "line", "logged_lines"),
    [
        (access_log, "log", logging.WARNING, "404 GET /a (@10.0.0.9) 1.00ms", MAX_ANONYMOUS_LINES),
        (access_log, "log", logging.WARNING, "404 GET /a (ana@10.0.0.9) 1.00ms", SENT_LINES),
        (gen_log, "web", logging.WARNING, "403 POST /a (10.0.0.9): no _xsrf", MAX_ANONYMOUS_LINES),
        (
            app_log,
            "_xsrf_utils",
            logging.INFO,
            "Setting new xsrf cookie for b'None:x'",
            MAX_ANONYMOUS_LINES,
        ),
        (HUB, "login", logging.ERROR, "XSRF error on login form: HTTP 403", MAX_ANONYMOUS_LINES),
        (HUB, "login", logging.INFO, "User logged in: ana", SENT_LINES),
        (HUB, "base", logging.WARNING, "Failed login for ana", SENT_LINES),
    ],
)
def test_hub_limits_its_log_lines_about_anonymous_requests(
    log: logging.Logger,
    module: str,
    level: int,
    line: str,
    logged_lines: int,
    monkeypatch: pytest.MonkeyPatch,
):
    for logger in (HUB, access_log, app_log, gen_log):
        monkeypatch.setattr(logger, "filters", [])
    bound_anonymous_lines(HUB, clock=lambda: 0.0)
    records = [
        logging.LogRecord("", level, f"{module}.py", 0, line, (), None) for _ in range(SENT_LINES)
    ]

    assert sum(bool(log.filter(record)) for record in records) == logged_lines
