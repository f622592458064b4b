"""Choice of free TCP ports on this machine, for programs that will listen later."""

import secrets
import socket
from pathlib import Path

_CANDIDATES = range(20_000, 32_768)
"""Ports without a customary use, below the kernel's default range for outgoing connections."""
_TRIES = 100
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux's first and last port of outgoing connections; elsewhere 49152 to 65535 (RFC 6335)."""


def later_port() -> int:
    """Return a free port of 127.0.0.1 for a program that is yet to start.

    Ports of the kernel's range for outgoing connections are excluded: until the program listens,
    the kernel could give such a port to any connection.
    """
    candidates = _below_ephemeral(_CANDIDATES, _EPHEMERAL)
    for _ in range(_TRIES if candidates else 0):
        if port_is_free(port := secrets.choice(candidates)):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def port_is_free(port: int) -> bool:
    """Return True if a server can listen on a port of 127.0.0.1 now."""
    try:
        try_port(port)
    except OSError:
        return False
    return True


def try_port(port: int, host: str = "127.0.0.1") -> None:
    """Bind a port as a server does, and release it. An empty host means every address.

    Raises:
        OSError: a server cannot bind the port.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _below_ephemeral(candidates: range, ephemeral: Path) -> range:
    """Return the candidates below the kernel's range for outgoing connections, if any."""
    try:
        first = int(ephemeral.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return candidates
    return range(candidates.start, min(candidates.stop, first))
