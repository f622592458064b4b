"""End with whoever started this process, even if they are killed.

Linux tells a process of its parent's death by a signal (prctl PR_SET_PDEATHSIG), so nothing polls.
Used by the service (its hub) and by the agent (its service).
"""

import ctypes
import os
import signal
import sys

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
