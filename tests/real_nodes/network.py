"""A network of the tests' own, with the nodes as its machines: invisible from outside.

    with Network() as network:
        with network.entered():      # this thread, and processes it starts, are inside
            ...

Its bridge has the address that the API server listens at; every node has one beside it, and a range
of addresses for its pods. The kernel removes it once it is closed and no process is inside. Needs
root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Self

GATEWAY, HARDWARE = "10.250.0.1", "02:00:0a:fa:00:01"
CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def node_address(number: int) -> str:
    """Return the address of a node."""
    return f"10.250.0.{10 + number}"


def pod_range(number: int) -> str:
    """Return the address range of a node's pods."""
    return f"10.244.{number}.0/24"


class Network:
    """A network namespace with a bridge."""

    def __init__(self) -> None:
        """Create the object; the network is made by `with`."""
        self._inside = self._outside = -1

    def __enter__(self) -> Self:
        """Make the network, with a bridge and no node on it."""
        self._outside = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # A thread that ends at once: this one must find its way back.
        maker = threading.Thread(target=self._make)
        maker.start()
        maker.join()
        with self.entered():
            _ip("link", "set", "lo", "up")
            # By default a bridge takes another MAC address whenever a node comes or goes, and the
            # other nodes would not find it for a while.
            _ip("link", "add", "nodes", "address", HARDWARE, "type", "bridge")
            _ip("address", "add", f"{GATEWAY}/24", "dev", "nodes")
            _ip("link", "set", "nodes", "up")
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; the kernel removes it with its last process."""
        os.close(self._inside)
        os.close(self._outside)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread into the network, with the processes and threads that it starts."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        _enter(self._inside)
        try:
            yield
        finally:
            _enter(before)
            os.close(before)

    def connect(self, number: int, process: int) -> None:
        """Connect a node's own network namespace by a veth pair; call it inside this network."""
        cable = f"node{number}"
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(process))
        _ip("link", "set", cable, "master", "nodes", "up")
        _ip("route", "replace", pod_range(number), "via", node_address(number))

    def _make(self) -> None:
        _check(_LIBC.unshare(CLONE_NEWNET))
        self._inside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _enter(network: int) -> None:
    _check(_LIBC.setns(network, CLONE_NEWNET))


def _check(answer: int) -> None:
    if answer:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
