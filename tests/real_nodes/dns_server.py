"""A DNS server for Service names, for the nodes' pods.

    with DnsServer(plane):      # inside of the nodes' network

`runai.runai`, with or without `.svc.cluster.local`, resolves to the address of that Service; all
other names do not exist. It answers like CoreDNS, as far as the tests need. For `cluster`.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any, Self

from control_plane.calls import ApiRefused
from control_plane.plane import ControlPlane

DOMAIN = "cluster.local"
HEADER_BYTES, QUESTION_END_BYTES = 12, 4
TYPE_A, CLASS_INTERNET = 1, 1
ANSWER_FLAGS, NO_SUCH_NAME_FLAGS = 0x8400, 0x8403
TTL_S = 1


class DnsServer:
    """A DNS server of Service names."""

    def __init__(self, plane: ControlPlane) -> None:
        """Create the server; it answers only inside `with`."""
        self._plane = plane
        self._answering = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self) -> Self:
        """Answer at port 53 of the network's own address."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self._plane.host, 53))
        self._answering.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server."""
        self._socket.sendto(b"", self._socket.getsockname())
        self._answering.join()
        self._socket.close()

    def _answer(self) -> None:
        while True:
            query, client_address = self._socket.recvfrom(512)
            if not query:  # an empty message is our own stop signal
                return
            self._socket.sendto(self._reply(query), client_address)

    def _reply(self, query: bytes) -> bytes:
        name, end = _name(query)
        kind, _class = struct.unpack_from("!HH", query, end)
        found = self._service(name)
        has_address = found is not None and kind == TYPE_A  # other types, like IPv6: empty
        flags = NO_SUCH_NAME_FLAGS if found is None else ANSWER_FLAGS
        counts = struct.pack("!HHHHH", flags, 1, int(has_address), 0, 0)
        reply = query[:2] + counts + query[HEADER_BYTES : end + QUESTION_END_BYTES]
        if has_address:
            name_pointer = 0xC000 | HEADER_BYTES  # a pointer to the name in the question
            reply += struct.pack("!HHHIH", name_pointer, TYPE_A, CLASS_INTERNET, TTL_S, 4)
            reply += socket.inet_aton(str(found))
        return reply

    def _service(self, name: str) -> str | None:
        service, _, namespace = name.removesuffix(f".svc.{DOMAIN}").partition(".")
        try:
            path = f"/api/v1/namespaces/{namespace}/services/{service}"
            found: Any = self._plane.request("GET", path)
        except ApiRefused:
            return None
        return str(found["spec"]["clusterIP"]) if "spec" in found else None


def _name(query: bytes) -> tuple[str, int]:
    """Return the name in a question, and the offset of its end."""
    at, labels = HEADER_BYTES, []
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    return ".".join(labels), at + 1
