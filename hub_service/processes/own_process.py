"""File descriptors, connections and parent-death signal of the current process.

Hub and service need one descriptor per open page, the service also one per running job. Users'
programs start with the limit that the platform was started with.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys

MAX_DESCRIPTORS = 524_288
"""Upper bound, as systemd's. Some programs close every possible descriptor at their start, which
takes long with a higher limit."""
MIN_DESCRIPTORS = 4096
"""Lower bound. A hundred users with a few pages each, and a thousand jobs, use half of it."""
MAX_CONNECTIONS = 10_000
"""Connections of a server: each costs 6 KiB of memory, 54 KiB while its head is long."""
HEAD_WITHIN_S = 15.0
"""Time for a connection's request head, as at the proxy."""
MODULE = (sys.executable, "-P", "-s", "-m")
"""Beginning of a command that runs a module of ours: it imports nothing from the working directory
or from the user's own site-packages, where a file of a library's name would take its place."""
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def max_descriptors() -> int:
    """Return the highest descriptor limit that this process can set, at most `MAX_DESCRIPTORS`."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)


def raise_descriptor_limit() -> int:
    """Raise the descriptor limit to `max_descriptors()`; return the previous soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < max_descriptors():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors(), hard))
    return soft


def max_connections() -> int:
    """Return the bound of a server's connections: half of the descriptors serve other purposes."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft // 2)


def end_with_parent(parent: int | None = None) -> None:
    """Request SIGTERM at the parent's death; does nothing outside Linux.

    `parent` is the PID that the parent passed on. Without it, the death of a parent during our
    imports goes unnoticed: the process that adopted us counts as the parent then.
    """
    if not sys.platform.startswith("linux"):
        return
    if parent is None:
        parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # The parent died before prctl: the kernel sends no signal for that.
        os.kill(os.getpid(), signal.SIGTERM)
