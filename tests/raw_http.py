"""HTTP byte by byte: clients that send anything, and a server that records exact requests.

The server accepts only unambiguous requests; it records any other one as a fault.
"""

from __future__ import annotations

import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage, HTTPResponse
from socketserver import StreamRequestHandler, ThreadingTCPServer

from ports import free_port

PATIENCE_S = 60.0
REQUEST_LINE = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1\r\n")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([^\x00\r\n]*)\r\n")
FRAMING = {b"content-length": re.compile(rb"\d+"), b"transfer-encoding": re.compile(rb"chunked")}
CHUNK_SIZE, END = re.compile(rb"[0-9A-Fa-f]{1,16}\r\n"), re.compile(rb"\r\n")
READ_BYTES = 65_536


@dataclass
class Received:
    """One request as it came in."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def values(self, name: bytes) -> list[bytes]:
        return [value for header, value in self.headers if header.lower() == name]


def response(status: str, *headers: str, body: bytes = b"") -> bytes:
    """Return a response with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def echo(request: Received) -> bytes:
    """Answer with the request's target."""
    return response("200 OK", body=b"" if request.method == b"HEAD" else request.target)


class RawServer(ThreadingTCPServer):
    """One server on a free port of 127.0.0.1."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", free_port()), _Connection)
        self.port: int = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.respond: Callable[[Received], bytes] = echo
        self.is_early = True
        """Answer as soon as the head is there, as smuggled requests need it."""
        self.connections: list[socket.socket] = []
        self.requests: list[Received] = []
        self.faults: list[bytes] = []
        """Lines of ambiguous requests."""
        self.tunnelled = 0
        """Bytes that came in after an answer of 101."""


class _Connection(StreamRequestHandler):
    server: RawServer

    def handle(self) -> None:
        self.server.connections.append(self.connection)
        with suppress(OSError):
            while (request := self._head()) is not None:
                self.server.requests.append(request)
                if self.server.is_early:
                    self._answer(request)
                for piece in self._body(request):
                    request.body += piece
                request.is_whole = True
                if not self.server.is_early:
                    self._answer(request)

    def _head(self) -> Received | None:
        lines = []
        while (line := self.rfile.readline()) not in {b"\r\n", b""}:
            lines.append(line)
        if line == b"":
            return None
        first = REQUEST_LINE.fullmatch(lines[0] if lines else line)
        headers = [HEADER.fullmatch(text) for text in lines[1:]]
        if first is None or not all(headers):
            self.server.faults += lines or [line]
            return None
        request = Received(first[1], first[2], [(h[1], h[2]) for h in headers if h])
        lengths = [
            allowed.fullmatch(value)
            for name, allowed in FRAMING.items()
            for value in request.values(name)
        ]
        if len(lengths) > 1 or not all(lengths):
            self.server.faults += lines
            return None
        return request

    def _answer(self, request: Received) -> None:
        answer = self.server.respond(request)
        self.wfile.write(answer)
        while answer.startswith(b"HTTP/1.1 101") and (piece := self.rfile.read1(READ_BYTES)):
            self.server.tunnelled += len(piece)

    def _body(self, request: Received) -> Iterator[bytes]:
        for length in request.values(b"content-length"):
            yield from self._exactly(int(length))
        if request.values(b"transfer-encoding"):
            while size := int(self._line(CHUNK_SIZE), 16):
                yield from self._exactly(size)
                self._line(END)
            self._line(END)

    def _line(self, allowed: re.Pattern[bytes]) -> bytes:
        line = self.rfile.readline()
        if not allowed.fullmatch(line):
            if line.endswith(b"\n"):  # else the client has left
                self.server.faults.append(line)
            raise ConnectionError("no chunk")
        return line

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self.rfile.read1(min(size, READ_BYTES))
            if not piece:
                raise ConnectionError("the body ends too early")
            size -= len(piece)
            yield piece


@contextmanager
def raw_server() -> Iterator[RawServer]:
    """Serve while the block runs."""
    with RawServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            for connection in server.connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Answer:
    """One answer; status 0 if the connection was closed instead."""

    status: int = 0
    headers: HTTPMessage = field(default_factory=HTTPMessage)
    body: bytes = b""


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def send_request(
    connection: socket.socket, target: str, *headers: str, method: str = "GET", body: bytes = b""
) -> Answer:
    """Send one request, then close the connection."""
    lines = [f"{method} {target} HTTP/1.1", *headers]
    if not any(header.startswith("Host:") for header in headers):
        lines.append("Host: 127.0.0.1")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    with connection:
        with suppress(ConnectionError):  # answered before all of it was sent
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return answer(connection)


def answer(connection: socket.socket) -> Answer:
    """Return the next answer."""
    with HTTPResponse(connection) as reply:
        try:
            reply.begin()
            return Answer(reply.status, reply.headers, reply.read())
        except (ConnectionError, HTTPException):
            return Answer()


def is_readable(connection: socket.socket) -> bool:
    """Return True if an answer, or the end, has come in."""
    poll = select.poll()  # `select` takes no descriptor above 1,023
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def wait_for_end(connection: socket.socket) -> None:
    """Receive until the other side closes the connection."""
    with suppress(ConnectionError):
        while connection.recv(READ_BYTES):
            pass


def upload(port: int, head: str, sent: bytes, times: int) -> int:
    """Send a head and pieces of a body until it is answered; return the status, 0 for none."""
    with connect(port) as attacker:
        with suppress(ConnectionError):
            attacker.sendall(head.encode())
            for _ in range(times):
                attacker.sendall(sent)
        return answer(attacker).status
