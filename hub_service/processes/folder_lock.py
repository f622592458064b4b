"""Locks that a program holds on a folder, while it lives, for any other account to see.

Standard library only: the supervisor's program loads it without its package (`subreaper.py`).
"""

import fcntl
import os


def locked(folder: str | os.PathLike[str]) -> int:
    """Return a descriptor that locks a folder while it is open; cleaners of /tmp spare it then.

    Raises:
        OSError: the folder is not there, or is a link.
    """
    fd = _open(folder)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def is_locked(folder: str | os.PathLike[str]) -> bool:
    """Return True if a program holds a folder; one that is not there is held by none."""
    try:
        fd = _open(folder)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _open(folder: str | os.PathLike[str]) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
