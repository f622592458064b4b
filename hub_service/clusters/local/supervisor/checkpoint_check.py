"""Check of a stopped worker's checkpoint directory: is any file newer than the worker's start?

It begins when all processes of the worker have ended and `exit.json` is written, in a process of
its own: no signal for the worker reaches it, and neither devices nor supervisor wait for a disk
that hangs. A second process checks, with the worker's account. Standard library only, like all of
the supervisor's program (`subreaper.py`).
"""

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from runai.hub_service.clusters.local.supervisor import account_reader, exit_notes, worker_start
else:  # in the subreaper's program, which extends sys.path
    import account_reader
    import exit_notes
    import worker_start

CHECK_WITHIN_S = 5.0
"""Seconds for the check. Later there is no answer, and the platform says nothing."""
PROGRESS_FILE = "progress.json"
"""Report of `runai.reporter` in the checkpoint directory, from which no job can go on."""


def begin_check(directory: str, spec: dict[str, Any], since: int) -> None:
    """Start a process that looks for a checkpoint since `since`; its answer is `saved.json`.

    `since` is the worker's start, by the clock of the checkpoint directory's file system; 0: there
    is no such directory, and no check.
    """
    supervisor = os.getpid()
    with contextlib.suppress(OSError):  # no process can be started: there is no answer then
        if since and os.fork() == 0:
            try:
                _note_answer(directory, spec, since, supervisor)
            finally:
                os._exit(0)


def _note_answer(directory: str, spec: dict[str, Any], since: int, supervisor: int) -> None:
    def read() -> bytes:
        return b"1" if has_new_file(spec["checkpoint_dir"], since) else b"0"

    if answer := account_reader.answer_of(read, spec, CHECK_WITHIN_S):
        # With the supervisor's PID: another job of this name may have the directory by now.
        note = {"supervisor": supervisor, "new": answer == b"1"}
        exit_notes.write_whole(f"{directory}/saved.json", note)


def has_new_file(place: str, since: int) -> bool:
    """Return True if a file below a directory was written, made or renamed since then.

    `since` is in nanoseconds by the file system's clock. No link is followed.

    Raises:
        OSError: it cannot be known.
    """
    if worker_start.touch(place) < since:
        raise OSError("the clock of the file system was set back")
    device, folders = os.lstat(place).st_dev, [place]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.path == f"{place}/{PROGRESS_FILE}":
                    continue
                found = entry.stat(follow_symlinks=False)
                if found.st_dev != device:
                    raise OSError("another file system has another clock")
                if stat.S_ISDIR(found.st_mode):
                    folders.append(entry.path)
                # A copy or an unpacked archive keeps its old mtime.
                elif max(found.st_mtime_ns, found.st_ctime_ns) >= since:
                    return True
    return False
