"""The service's side of agent reports: real HTTP, with the answers that a test chooses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from runai.hub_service.wire.reports import AgentAllocation, AgentReply, AgentReport


class ReportServer(ThreadingHTTPServer):
    """A server that records the reports, their senders, and the number of connections."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.allocations: list[AgentAllocation] = []
        self.status = 200
        self.reply: str | None = None
        """The next answer; None: the allocations."""
        self.hangs_up = False
        self.reports: list[AgentReport] = []
        self.requested: set[tuple[str, str]] = set()
        """Requested paths, each with its authorization header."""
        self.request_ids: list[str] = []
        self.clients: set[int] = set()
        self.has_hung_up = threading.Semaphore(0)
        self.answers = threading.Event()
        self.answers.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/runai/"

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        super().shutdown_request(request)
        self.has_hung_up.release()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ReportServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requested.add((self.path, self.headers["Authorization"]))
        self.server.request_ids.append(self.headers["X-Request-ID"])
        self.server.clients.add(self.client_address[1])
        self.server.reports.append(AgentReport.model_validate_json(body))
        self.server.answers.wait()
        content = self.server.reply
        if content is None:
            content = AgentReply(allocations=self.server.allocations).model_dump_json()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())
        # Without a `Connection: close` header, as a server closes a connection that idled too long.
        self.close_connection = self.server.hangs_up

    def log_message(self, *_: object) -> None: ...


@contextmanager
def report_server() -> Iterator[ReportServer]:
    """Serve in a thread until the test is over."""
    with ReportServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.answers.set()
            server.shutdown()
            thread.join()
