"""Subreaper: parent of the supervisor, which reports the worker's exit if that was killed.

The program that `attempt` starts (`python -I -S subreaper.py DIRECTORY STATUS_FD`), with the
standard library only. It forks: the child is the supervisor, which does the work; the parent waits
for it and forwards SIGTERM. A killed supervisor's processes become its children: an ended worker
with its exit code, and running ones, which it kills; until then it holds the lock. So an exit is
missed, and processes are left, only if both are killed. If the subreaper alone is killed, the
supervisor goes on.
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
        code_note,
        exit_notes,
        process_tree,
        supervisor,
        worker_start,
    )
else:
    # Isolated Python omits the program's folder; last, so that it shadows no library.
    _HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path += [_HERE, f"{_HERE}/../../../processes"]
    import code_note
    import exit_notes
    import process_tree
    import supervisor
    import worker_start

SUBREAPER_BYTE = 1
"""Byte of the lock file that shows that the subreaper of this start lives."""
LOOK_EVERY_S = 0.01
END_EVERY_S = 0.1


def main(directory: str, status_fd: int) -> None:
    """Run the supervisor in a child; afterwards report its worker's exit if it did not."""
    if not supervisor.lock_byte(directory, SUBREAPER_BYTE):
        return
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    code_note.begin_note(directory, status_fd)
    supervisor.adopt_orphans()
    child = worker_start.fork_patiently()
    if child == 0:
        supervisor.Supervisor(directory, status_fd, exit_notes.ExitNotes(directory)).run()
        return
    os.close(status_fd)  # the service reads EOF when the supervisor has closed it
    stop_requested = False

    def forward_sigterm(_number: int, _frame: object) -> None:
        nonlocal stop_requested
        stop_requested = True
        os.kill(child, signal.SIGTERM)  # not reaped yet: its PID cannot be reused

    signal.signal(signal.SIGTERM, forward_sigterm)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.waitpid(child, 0)
    if os.path.exists(f"{directory}/exit.json"):  # noqa: PTH110
        return  # the supervisor reported everything
    # First: the next holder of the device waits for them, and a note may wait for disk space.
    process_tree.end_all(os.getpid())
    report_lost_exit(directory, stop_requested=stop_requested)
    kill_descendants()


def report_lost_exit(directory: str, *, stop_requested: bool) -> None:
    """Report the worker's exit, if the killed supervisor left it unreaped."""
    try:
        with open(f"{directory}/process.json", "rb") as file:  # noqa: PTH123
            worker: int = json.load(file)["pid"]
    except FileNotFoundError:
        return  # it never ran
    give_up_at = time.monotonic() + supervisor.HOPELESS_AFTER_S
    try:
        while (waited := os.waitpid(worker, os.WNOHANG))[0] == 0 and time.monotonic() < give_up_at:
            time.sleep(LOOK_EVERY_S)  # the kernel kills it within milliseconds, except in a driver
    except ChildProcessError:
        return  # the supervisor has reaped it, and writes before that
    exit_code = os.waitstatus_to_exitcode(waited[1])
    if waited[0] == worker and exit_code != -signal.SIGKILL:
        # SIGKILL came with the supervisor's end: its outcome without that is unknown.
        note = exit_notes.ExitNotes(directory)
        note.enqueue("ended.json", {"exit_code": exit_code, "told": stop_requested, "text": ""})
        note.until_written()


def kill_descendants() -> None:
    """Kill all descendants; return when none is left, or only the kernel can end them."""
    give_up_at = time.monotonic() + supervisor.HOPELESS_AFTER_S
    while time.monotonic() < give_up_at:
        process_tree.end_all(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(END_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
