"""The log of the embedded platform: line format and rotation by size.

Hub, service and agent write to one inherited descriptor, opened for appending: the log is
copied and truncated in place (as by logrotate's `copytruncate`), never renamed.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jupyterhub.log import CoroutineLogFormatter
from tornado.log import access_log, app_log, gen_log

from runai.hub_service.processes.log_lines import AnonymousLines, bounded

LOG_BYTES = 10_000_000
LOG_FILES = 10
POLL_INTERVAL_S = 1.0


class HubLogFormatter(CoroutineLogFormatter):
    """Formatter of JupyterHub's log: every line printable and of bounded length."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines; Tornado has indented all but the first."""
        return "\n".join(bounded(line) for line in super().format(record).split("\n"))


def bound_anonymous_lines(hub: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
    """Bound the lines about requests without a login in the hub's and Tornado's logs."""
    lines = AnonymousLines(_is_anonymous, clock)
    for logger in (hub, access_log, app_log, gen_log):
        logger.addFilter(lines)


def _is_anonymous(record: logging.LogRecord) -> bool:
    """Return True for a request without a login, by the module that logs it; no exceptions."""
    if record.module == "log":
        return " (@" in record.getMessage()  # no user before the address
    is_refused_form = record.module == "login" and record.levelno == logging.ERROR
    return record.exc_info is None and (is_refused_form or record.module in {"web", "_xsrf_utils"})


def start_rotation(log: Path) -> None:
    """Rotate the log in a thread, because a flood keeps the event loop busy."""

    def forever() -> None:
        while True:
            with suppress(OSError):  # a full disk: the log stays, the next round retries
                rotate(log)
            time.sleep(POLL_INTERVAL_S)

    threading.Thread(target=forever, name="log rotation", daemon=True).start()


def rotate(log: Path, max_bytes: int = LOG_BYTES, files: int = LOG_FILES) -> None:
    """Move a log above `max_bytes` to `LOG.1`, and older parts to the next number.

    Older parts go, oldest first, when the parts have more than `files - 1` times `max_bytes`
    together. A line that is written between the copy and the truncation is lost.
    """
    size = log.stat().st_size
    if size <= max_bytes:
        return
    retained_bytes = max_bytes * (files - 1)
    parts = [log.with_name(f"{log.name}.{number}") for number in range(1, files + 1)]
    room = retained_bytes - size
    for part in parts:
        if part.exists():
            room -= part.stat().st_size
            if room < 0:
                part.unlink()
    copy = log.with_name(f".{log.name}.partial")
    copy.touch(mode=0o600)
    with log.open("rb+") as source, copy.open("wb") as target:
        source.seek(max(0, size - retained_bytes))
        shutil.copyfileobj(source, target)
        source.truncate(0)
    for newer, older in zip(parts[-2::-1], parts[:0:-1], strict=True):
        if newer.exists():
            newer.replace(older)
    copy.replace(parts[0])
