"""TCP ports of this machine for programs that will listen later: chosen now, taken in a while."""

import secrets
import socket
from pathlib import Path

_CANDIDATES = range(20_000, 32_768)
"""Nobody's by custom, and below what kernels hand to outgoing connections by default."""
_TRIES = 100
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux's first and last port of outgoing connections; elsewhere 49152 to 65535 (RFC 6335)."""


def later_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on, for a program that is yet to start.

    None of those that the kernel hands to outgoing connections: until the program listens, any
    connection of anybody could be given it.
    """
    candidates = _kept_free(_CANDIDATES, _HANDED_OUT)
    for _ in range(_TRIES if candidates else 0):
        if port_is_free(port := secrets.choice(candidates)):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def port_is_free(port: int) -> bool:
    """Return True if a server could listen on a port of 127.0.0.1 now."""
    try:
        try_port(port)
    except OSError:
        return False
    return True


def try_port(port: int, host: str = "127.0.0.1") -> None:
    """Bind a port, as a server would, and let go of it; an empty host is every address.

    Raises:
        OSError: a server could not.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _kept_free(candidates: range, handed_out: Path) -> range:
    """Return those below what the kernel hands out, none where it hands out from below them."""
    try:
        first = int(handed_out.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return candidates
    return range(candidates.start, min(candidates.stop, first))
