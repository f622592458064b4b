"""Ports for the servers of tests: no other test gets them, nor any outgoing connection.

A port that the kernel chooses (`bind` to 0) is from the range of outgoing connections, too: until
the server listens, any client may be given the same port. And tests run in parallel. So ports come
from below the kernel's range, from a range of each pytest-xdist worker, one after the other.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator, Sequence

CANDIDATES = range(11_000, 20_000)
"""Below the ports that the platform chooses (`later_ports`)."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process listens on, another one at each call."""
    return next(port for port in _candidates if _nothing_is_on(port))


def free_ports(count: int) -> Sequence[int]:
    """Return `count` free ports."""
    return [free_port() for _ in range(count)]


def _lane() -> Iterator[int]:
    """Yield this worker's ports endlessly, from another start in each run of the suite."""
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
