"""Ports for the servers that tests start: no other test gets them, nor any outgoing connection.

A port that the kernel chooses (`bind` to 0) is one of those that it gives to outgoing connections,
too: until the server listens, any client beside it may be given the same. And tests run beside
each other. So they come from below what the kernel hands out, from a lane of each worker of
pytest-xdist, one after the other.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator, Sequence

CANDIDATES = range(11_000, 20_000)
"""Below those of the platform's own choice (`later_ports`)."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on, another one at each call."""
    return next(port for port in _candidates if _nothing_is_on(port))


def free_ports(count: int) -> Sequence[int]:
    """Return as many."""
    return [free_port() for _ in range(count)]


def _lane() -> Iterator[int]:
    """Go round this worker's ports for ever, from another place in each run of the suite."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    lane = CANDIDATES[mine::workers]
    begin = os.getpid() * 97 % len(lane)
    return itertools.cycle([*lane[begin:], *lane[:begin]])


def _nothing_is_on(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_candidates = _lane()
