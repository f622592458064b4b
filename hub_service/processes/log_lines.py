"""Log formats of the platform's processes: one record per line, as text or JSON.

Records contain names, paths and error messages from users: escaping keeps such text from forging a
record of its own. Each record carries the id of the request that it belongs to.
"""

import errno
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

from runai.hub_service.wire import problems
from runai.hub_service.wire.printable import printable

LogFormat = Literal["text", "json"]

MAX_CHARACTERS = 4000
MAX_WORD_CHARACTERS = 200  # clients choose request paths, up to the size of a request's head
_LONG_WORD = re.compile(rf"(\S{{{MAX_WORD_CHARACTERS - 1}}})\S{{2,}}")
_CHATTY = ("alembic", "httpx", "uvicorn.error")


DESCRIPTORS_EVERY_S = 60.0


class DescriptorShortage(logging.Filter):
    """Filter of asyncio's log: a shortage of descriptors is one line a minute.

    Each attempt to accept a connection fails then, hundreds of times a second.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next_line_at = clock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a shortage that was logged within the last minute."""
        failed = record.exc_info[1] if record.exc_info else None
        if not isinstance(failed, OSError) or failed.errno not in {errno.EMFILE, errno.ENFILE}:
            return True
        now = self._clock()
        if now < self._next_line_at:
            return False
        self._next_line_at = now + DESCRIPTORS_EVERY_S
        record.msg, record.args = "No file descriptor is free: connections wait (%s).", (failed,)
        record.exc_info = record.exc_text = None
        return True


MAX_ANONYMOUS_LINES = 100


class AnonymousLines(logging.Filter):
    """Filter of lines about requests without a login: 100 at once, then one a second.

    A flood of them would soon replace the whole history. The next line counts the omitted ones.
    """

    def __init__(
        self,
        is_anonymous: Callable[[logging.LogRecord], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._is_anonymous = is_anonymous
        self._clock = clock
        self._allowance, self._refilled_at, self._omitted = float(MAX_ANONYMOUS_LINES), clock(), 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for such a line above the rate."""
        if not self._is_anonymous(record):
            return True
        now = self._clock()
        self._allowance = min(MAX_ANONYMOUS_LINES, self._allowance + now - self._refilled_at)
        self._refilled_at = now
        if self._allowance < 1:
            self._omitted += 1
            return False
        self._allowance -= 1
        if self._omitted:
            record.args = (record.getMessage(), self._omitted)
            record.msg = "%s (before it, %d lines about requests without a login were omitted)"
            self._omitted = 0
        return True


def bound_shortage_lines() -> None:
    """Log a shortage of descriptors in this process once a minute."""
    logging.getLogger("asyncio").addFilter(DescriptorShortage())


def begin_logging(
    level: str, form: LogFormat, *, text: str = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
) -> None:
    """Write all records of this process to standard error; `text` formats text logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else LogLines(text))
    logging.basicConfig(level=level, handlers=[handler])
    bound_shortage_lines()
    anonymous = AnonymousLines(lambda record: getattr(record, "is_anonymous", False))
    logging.getLogger("runai.requests").addFilter(anonymous)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def bounded(line: str) -> str:
    r"""Return a log line with unprintable characters escaped, and long words and lines cut.

    >>> bounded("404 GET /hub/\x1b]0;owned\x07")
    '404 GET /hub/\\x1b]0;owned\\x07'
    >>> len(bounded("/" + "x" * 60_000))
    200
    """
    return printable(_LONG_WORD.sub(r"\1…", line), MAX_CHARACTERS)


class LogLines(logging.Formatter):
    """Formatter for text: one line per record, with an indented traceback below."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Return the escaped line, followed by the request's id."""
        line = bounded(super().formatMessage(record))
        request = problems.current.get()
        return f"{line} [{request}]" if request else line

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802  the same
        """Return the traceback, indented so that none of its lines looks like a record."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {bounded(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """Formatter for JSON: one object per record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _LONG_WORD.sub(r"\1…", record.getMessage()),
        }
        if request := problems.current.get():
            line["request"] = request
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
