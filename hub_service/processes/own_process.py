"""How many files, sockets and processes a process may have open at once.

Hub and service have one for each open page, the service also one for each job that runs; users'
programs begin with the limit that the platform was started with.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys

ENOUGH = 524_288
"""systemd's own bound: of more, programs that close all there could be would take their time."""
FEW = 4096
"""A hundred users with a few pages each, and a thousand jobs, take half of it."""


def most() -> int:
    """Return how many this process could have open: its hard limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)


def take_all() -> int:
    """Let this process have as many as it could; return how many it might until now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < most():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most(), hard))
    return soft


_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(parent: int | None = None) -> None:
    """Ask for SIGTERM when the parent dies; elsewhere than on Linux nothing happens.

    `parent` is its PID as it told us itself. Without it, a parent that died while this program was
    still being imported is taken for the one that adopted us, and never missed.
    """
    if not sys.platform.startswith("linux"):
        return
    if parent is None:
        parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # It died in between, and nobody will tell.
        os.kill(os.getpid(), signal.SIGTERM)
