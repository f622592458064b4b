"""A hub over TLS with the platform's service, reduced to the parts that clients use."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from control_plane.certificates import Certificate
from overviews import overview

ANSWER = {
    "name": "ana",
    "kind": "user",
    "admin": False,
    "groups": [],
    "projects": ["vision"],
    "default_project": "vision",
    "version": "1",
}
"""The service's answer about a caller; its version makes it the hub's about itself."""
EVENTS = b"event: overview\ndata: " + overview().model_dump_json().encode() + b"\n\n"


class TlsHub(ThreadingHTTPServer):
    """A server that counts connections; a client that refuses the certificate sends no request."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self.server_port}/"
        self.connections = 0

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        with suppress(ssl.SSLError, ConnectionError):
            super().finish_request(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        bodies = {"events": EVENTS, "overview": overview().model_dump_json().encode()}
        body = bodies.get(self.path.rpartition("/")[2], json.dumps(ANSWER).encode())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def tls_hub(certificate: Certificate, folder: Path) -> Iterator[TlsHub]:
    """Serve with this certificate while the block runs."""
    certificate.write(folder, "hub")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "hub.crt", folder / "hub.key")
    with TlsHub(context) as hub:
        thread = threading.Thread(target=hub.serve_forever, name="tls hub")
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
