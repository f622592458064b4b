"""Deliver reports to the service: one connection that stays open, one small request a second.

The general client would do, at three times the price of all that a poll costs. Knows HTTP as the
standard library speaks it, and that most replies are the same as the one before; `calls` knows the
route and the messages. Goes straight to the service, through no proxy. The loop calls it.
"""

import asyncio
import contextlib
import select
import socket
import threading
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from runai.hub_service.client import calls
from runai.hub_service.client.connection import address_parts
from runai.hub_service.wire import problems
from runai.hub_service.wire.agent_reports import AgentReply, AgentReport
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.problems import error_from_reply


class HttpReporter:
    """Speaks to one service; one report at a time."""

    def __init__(self, url: str, token: str | Path) -> None:
        """Take note of the address; it is connected to when there is something to tell.

        A token in a file is read each time: Kubernetes writes another one before it expires.

        Raises:
            InvalidRequest: `url` is no address.
        """
        parts = address_parts(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        assert parts.hostname
        self._http = kind(parts.hostname, parts.port)
        self._root = parts.path.rstrip("/") + "/"
        # Without user:password@, for sentences.
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._token = token
        self._one_at_a_time = threading.Lock()
        self._said = b""
        self._reply = AgentReply(allocations=[])

    async def report(self, report: AgentReport) -> AgentReply:
        """Deliver one report; return what the service says, the same object while it is the same.

        Raises:
            Unavailable: the service is away; the same report may be given again.
            RunaiError: it refuses the report.
        """
        call = calls.report(report)
        # Of this exchange: what is logged for a refusal here has the name that the service logs.
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
        if body != self._said:
            self._said, self._reply = b"", call.read(body)
            self._said = body
        return self._reply

    def close(self) -> None:
        """Hang up, also on a report that is under way."""
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
            # What is left of an unfinished exchange must not answer the next one.
            http.close()
            raise


def _has_hung_up(connected: socket.socket) -> bool:
    # Nobody speaks unasked: what there is to read is the end.
    waiting = select.poll()
    waiting.register(connected, select.POLLIN)
    return bool(waiting.poll(0))
