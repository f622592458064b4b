"""Send a signal to one process and no other, even if its number is somebody else's by now.

Linux only: a process is held by a descriptor while its start time is compared. Called by the agent.
"""

import os
import signal

import psutil

SAME_START_S = 0.005
"""Start times come in ticks of 10 ms."""


def send(pid: int, created: float, number: signal.Signals) -> bool:
    """Signal the process that was started then; False if it is gone.

    `created` is as psutil.Process.create_time() gives it.

    Raises:
        PermissionError: it belongs to an account that we may not signal.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor is of whoever has the number now: is that the one who was meant?
        if abs(psutil.Process(pid).create_time() - created) > SAME_START_S:
            return False
        signal.pidfd_send_signal(process, number)
    except (ProcessLookupError, psutil.Error):
        return False
    finally:
        os.close(process)
    return True
