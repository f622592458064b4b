"""The log file of a notebook server in its user's home."""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from runai.spawner.session import session_name

LOG_BYTES: Final = 10_000_000
_FOLDER: Final = ".local/share/runai"  # beside the jobs' files


def output_file(user: str, server: str = "") -> str:
    """Return the path of a server's log, relative to its user's home.

    >>> output_file("ana", "big")
    '.local/share/runai/lab-ana-big.log'
    """
    return f"{_FOLDER}/{session_name(user, server)}.log"


def write_output_to(path: Path) -> None:
    """Redirect standard input, output and error in the forked child, as the user.

    Output goes to /dev/null if the file cannot be opened: the server starts anyway.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        output = _opened(path)
    except OSError:
        output = nothing
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)


def _opened(path: Path) -> int:
    """Open the file for appending; rename one of more than 10 MB to `.1` first.

    Raises:
        OSError: it is no regular file, or cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if path.stat(follow_symlinks=False).st_size > LOG_BYTES:
            path.replace(f"{path}.1")
    # O_NONBLOCK: the hub waits for the fork, and a FIFO without a reader would block it.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(f"{path} is no file")
    os.fchmod(descriptor, 0o600)
    return descriptor
