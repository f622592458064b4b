"""The status line for a shell's prompt: plain `http.client`, within half a second or not at all.

Without pydantic, httpx and click, which take longer to import than the answer takes.
"""

import json
import os
import ssl
import sys
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from threading import Thread
from typing import Any, Final
from urllib.parse import urlsplit

from runai.hub_service.client.connection import ConnectionSource, checked_token, find_connection
from runai.hub_service.client.status_line import StatusLine, status_line
from runai.hub_service.client.tls_trust import verification
from runai.hub_service.wire.printable import json_for_terminal

WITHIN_S: Final = 0.5
"""Time for the whole answer; a prompt waits no longer."""
MAX_ANSWER_BYTES: Final = 32 * 2**20


def fetch_status_line(environ: Mapping[str, str] = os.environ) -> StatusLine | None:
    """Return the line of this session, else of the user; None: no login, or no answer in time."""
    lines: list[StatusLine] = []

    def read() -> None:
        try:
            lines.append(_read(environ))
        except Exception:  # noqa: BLE001 - a prompt shows nothing, whatever is wrong
            return

    # Sockets bound each wait; a thread bounds all of them together, name resolution included.
    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(WITHIN_S)
    return lines[0] if lines else None


def print_status_line(*, as_json: bool) -> int:
    """Print the line; return the exit code: 1 without a line, 130 after Ctrl-C."""
    try:
        line = fetch_status_line()
        if line is None:
            return 1
        if sys.stdout is not None:  # None: it is closed
            _print(line, as_json=as_json)
    except KeyboardInterrupt:
        return 130
    return 0


def _print(line: StatusLine, *, as_json: bool) -> None:
    text = json_for_terminal(line._asdict(), indent=2) if as_json else line.text
    encoding = sys.stdout.encoding or "ascii"  # a prompt with signs it lacks is no error
    text = text.encode(encoding, "replace").decode(encoding)
    try:
        print(text, flush=True)  # noqa: T201 - the command's output
    except BrokenPipeError:  # nobody reads; the interpreter would say so at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read(environ: Mapping[str, str]) -> StatusLine:
    connection = find_connection(environ)
    parts = urlsplit(connection.url)
    address = parts.hostname or "", parts.port
    verify = verification(connection.url, connection.ca)
    context = verify if isinstance(verify, ssl.SSLContext) else None
    http = (
        HTTPConnection(*address, timeout=WITHIN_S)
        if parts.scheme == "http"
        else HTTPSConnection(*address, timeout=WITHIN_S, context=context)
    )

    def get(name: str) -> Any:  # noqa: ANN401  JSON
        path = f"{parts.path.rstrip('/')}/api/v1/{name}"
        http.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = http.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
        if response.status != 200 or response.read(1):
            raise ValueError(name)
        return json.loads(body)

    token = checked_token(connection.token)
    session = environ.get("RUNAI_WORKLOAD", "")
    user = environ.get("JUPYTERHUB_USER", "") if ConnectionSource(environ).is_session else ""
    with closing(http):
        return status_line(get("overview"), user=user or get("whoami")["name"], session=session)
