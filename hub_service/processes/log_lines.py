"""How a log is written: one record begins one line, whatever is in it; text, or JSON objects.

Records repeat names, paths and errors that other people chose; a line of theirs must not pass for
one of ours. Each carries the id of the request that it was written for. Knows the standard
library's logging. Called by the `main` of every process of the platform.
"""

import json
import logging
import re
import sys
import time
from typing import Any, Literal

from runai.hub_service.wire import problems
from runai.hub_service.wire.printable import printable

LogFormat = Literal["text", "json"]

MOST_CHARACTERS = 4000
MOST_OF_A_WORD = 200  # addresses of requests are anybody's text, as long as a head may be
_LONG_WORD = re.compile(rf"(\S{{{MOST_OF_A_WORD - 1}}})\S{{2,}}")
_CHATTY = ("alembic", "httpx", "uvicorn.error")


def begin_logging(
    level: str, form: LogFormat, *, text: str = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
) -> None:
    """Write every record of this process to its standard error; `text` is how people read it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else LogLines(text))
    logging.basicConfig(level=level, handlers=[handler])
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def bounded(line: str) -> str:
    r"""Return a line of a log with odd letters as escapes; long words and long lines are cut.

    >>> bounded("404 GET /hub/\x1b]0;owned\x07")
    '404 GET /hub/\\x1b]0;owned\\x07'
    >>> len(bounded("/" + "x" * 60_000))
    200
    """
    return printable(_LONG_WORD.sub(r"\1…", line), MOST_CHARACTERS)


class LogLines(logging.Formatter):
    """Writes a record on one line, and a traceback below it, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Return the line, odd letters as escapes, and behind it the id of the request."""
        line = bounded(super().formatMessage(record))
        request = problems.current.get()
        return f"{line} [{request}]" if request else line

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802  the same
        """Return a traceback of which no line begins like a record."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {bounded(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, whatever the sentence has in it."""
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
