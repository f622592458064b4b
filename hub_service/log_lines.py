"""How a log is written: one record begins one line, whatever is in it; text, or JSON objects.

Records repeat names, paths and errors that other people chose; a line of theirs must not pass for
one of ours. Each carries the id of the request that it was written for. Knows the standard
library's logging. Called by the `main` of every process of the platform.
"""

import json
import logging
import sys
import time
from typing import Any, Literal

from runai.hub_service import request_ids
from runai.hub_service.printable import printable

__all__ = ["LogFormat", "LogLines", "begin_logging"]

LogFormat = Literal["text", "json"]

MOST_CHARACTERS = 4000
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


class LogLines(logging.Formatter):
    """Writes a record on one line, and a traceback below it, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        """Return the line, odd letters as escapes, and behind it the id of the request."""
        line = printable(super().formatMessage(record), MOST_CHARACTERS)
        request = request_ids.current.get()
        return f"{line} [{request}]" if request else line

    def formatException(self, ei: Any) -> str:  # noqa: ANN401, N802  the same
        """Return a traceback of which no line begins like a record."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"  {printable(line, MOST_CHARACTERS)}" for line in lines)


class JsonLines(logging.Formatter):
    """Writes a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, whatever the sentence has in it."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := request_ids.current.get():
            line["request"] = request
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
