"""Delivery of reports to the service: one persistent connection, one small request a second.

Uses `http.client`: a request of the general client costs three times as much as a whole poll. Most
replies equal the previous one and are not parsed again. Connects directly, without a proxy.
"""

import asyncio
import contextlib
import select
import socket
import threading
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from runai.hub_service.client import calls
from runai.hub_service.client.transport import address_parts
from runai.hub_service.wire import problems
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.problems import error_from_reply
from runai.hub_service.wire.reports import AgentReply, AgentReport


class HttpReporter:
    """HTTP connection to one service; sends one report at a time."""

    def __init__(self, url: str, token: str | Path) -> None:
        """Set the address; the first report opens the connection.

        A token in a file is read for each request: Kubernetes replaces it before it expires.

        Raises:
            InvalidRequest: `url` is not a valid address.
        """
        parts = address_parts(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        assert parts.hostname
        self._http = kind(parts.hostname, parts.port)
        self._root = parts.path.rstrip("/") + "/"
        # For error messages: without user:password@.
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._token = token
        self._one_at_a_time = threading.Lock()
        self._last_body = b""
        self._reply = AgentReply(allocations=[])

    async def report(self, report: AgentReport) -> AgentReply:
        """Deliver one report; return the reply, the same object if the reply has not changed.

        Raises:
            Unavailable: the service is unreachable; the caller may retry the same report.
            RunaiError: the service refuses the report.
        """
        call = calls.report(report)
        # One request id per exchange: agent and service log a refusal under the same id.
        problems.current.set(problems.new_id())
        try:
            status, retry_after, body = await asyncio.to_thread(self._send, call)
        except (OSError, HTTPException) as failure:
            what = "did not answer in time" if isinstance(failure, TimeoutError) else "is away"
            raise Unavailable(
                f"The GPU service at {self._origin} {what}.", code="unreachable"
            ) from failure
        if not 200 <= status < 300:
            raise error_from_reply(status, body, retry_after)
        if body != self._last_body:
            self._last_body, self._reply = b"", call.read(body)
            self._last_body = body
        return self._reply

    def close(self) -> None:
        """Close the connection and abort a request in flight."""
        if (connected := self._http.sock) is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        with self._one_at_a_time:
            self._http.close()

    def _send(self, call: calls.Call[AgentReply]) -> tuple[int, str | None, bytes]:
        with self._one_at_a_time:
            return self._exchange(self._http, call)

    def _exchange(
        self, http: HTTPConnection, call: calls.Call[AgentReply]
    ) -> tuple[int, str | None, bytes]:
        if http.sock is not None and _has_hung_up(http.sock):
            http.close()
        http.timeout = call.timeout_s
        try:
            token = self._token if isinstance(self._token, str) else self._token.read_text().strip()
            headers = {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/json",
                problems.HEADER: problems.current.get(),
            }
            http.request(call.method, self._root + call.path, call.content(), headers)
            with http.getresponse() as response:
                return response.status, response.headers.get("Retry-After"), response.read()
        except BaseException:
            # Bytes of an unfinished exchange must not be read as the next response.
            http.close()
            raise


def _has_hung_up(connected: socket.socket) -> bool:
    # The service sends nothing unrequested: a readable idle connection is a closed one.
    waiting = select.poll()
    waiting.register(connected, select.POLLIN)
    return bool(waiting.poll(0))
