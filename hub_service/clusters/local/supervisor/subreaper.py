"""Be the supervisor's parent, and write down how its worker ended if it is killed before it could.

The program that `attempt` starts (`python -I -S subreaper.py DIRECTORY STATUS_FD`), with no library
but the standard one. It becomes two processes: the supervisor, which does the work, and this one,
which waits for it and passes SIGTERM on. What a killed supervisor leaves comes to this one, an
ended worker with its exit code, and all that still runs, which it ends: until then the start is
held. So an end stays unseen, and anything left, only where both are killed. If this one alone is
killed, the supervisor goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runai.hub_service.clusters.local.supervisor import (
        exit_notes,
        process_tree,
        supervisor,
        worker_start,
    )
else:
    # Isolated Python does not look beside the program; last, so that we shadow no library.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import exit_notes
    import process_tree
    import supervisor
    import worker_start

OURS = 1
"""Our byte of the lock file, beside the supervisor's: whoever of the two lives holds the start."""
LOOK_EVERY_S = 0.01
END_EVERY_S = 0.1


def main(directory: str, status_fd: int) -> None:
    """Live as long as the supervisor, and until its worker's end is known."""
    if not supervisor.take_lock(directory, OURS):
        return
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    supervisor.adopt_orphans()
    child = worker_start.fork_patiently()
    if child == 0:
        supervisor.Supervisor(directory, status_fd, exit_notes.Notes(directory)).run()
        return
    os.close(status_fd)  # it reads its end when the supervisor has closed it
    told = False

    def pass_on(_number: int, _frame: object) -> None:
        nonlocal told
        told = True
        os.kill(child, signal.SIGTERM)  # not reaped yet: the number is still its own

    signal.signal(signal.SIGTERM, pass_on)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.waitpid(child, 0)
    if os.path.exists(f"{directory}/exit.json"):  # noqa: PTH110
        return  # it has seen to everything
    # First: whoever comes to their device waits until they are gone, a note perhaps for room.
    process_tree.end_all(os.getpid())
    bear_witness(directory, told=told)
    end_the_rest()


def bear_witness(directory: str, *, told: bool) -> None:
    """Write down how the worker ended if the supervisor left it to us."""
    try:
        with open(f"{directory}/process.json", "rb") as file:  # noqa: PTH123
            worker: int = json.load(file)["pid"]
    except FileNotFoundError:
        return  # it never ran
    until = time.monotonic() + supervisor.HOPELESS_AFTER_S
    try:
        while (found := os.waitpid(worker, os.WNOHANG))[0] == 0 and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)  # the kernel is killing it: milliseconds, but for a driver
    except ChildProcessError:
        return  # the supervisor has reaped it, and writes before it does
    exit_code = os.waitstatus_to_exitcode(found[1])
    if found[0] == worker and exit_code != -signal.SIGKILL:
        # By SIGKILL it ended with its supervisor: how it would have gone on nobody knows.
        note = exit_notes.Notes(directory)
        note.tell("ended.json", {"exit_code": exit_code, "told": told, "text": ""})
        note.until_written()


def end_the_rest() -> None:
    """Return when nothing is left below us, or only what is for the kernel to end."""
    until = time.monotonic() + supervisor.HOPELESS_AFTER_S
    while time.monotonic() < until:
        process_tree.end_all(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(END_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
