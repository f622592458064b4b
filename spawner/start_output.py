"""The output of a notebook server: a log file in its user's home, and its last lines after a start.

Where the home cannot take a log, the beginning of the output is kept in the hub's memory.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from runai.spawner.session_request import session_name

LOG_BYTES: Final = 10_000_000
SPARE_BYTES: Final = 64 * 1024
"""Bytes that are kept without a log; the server's later output is refused."""
READ_BYTES: Final = 64 * 1024
LAST_LINES: Final = 20
LAST_CHARACTERS: Final = 4096
_FOLDER: Final = ".local/share/runai"  # beside the jobs' files
_SECRET_NAME: Final = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY|COOKIE", re.IGNORECASE)
_SHORTEST_SECRET: Final = 6
_IN_TEXT: Final = re.compile(
    r"((?:token|secret|passw\w*|api_?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&]+", re.IGNORECASE
)
_NOT_TEXT: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Terminals' colours, and control characters other than tab and newline."""


def output_file(user: str, server: str = "") -> str:
    """Return the path of a server's log, relative to its user's home.

    >>> output_file("ana", "big")
    '.local/share/runai/lab-ana-big.log'
    """
    return f"{_FOLDER}/{session_name(user, server)}.log"


class StartOutput:
    """Output of one start of a server."""

    def __init__(self, home: Path, name: str, owner: int) -> None:
        """Begin before the process is started; the log is `name` below the home of `owner`."""
        self._home = home
        self._name = name
        self._owner = owner
        log = self._open_log()
        with contextlib.closing(log):
            self._begin = log.size
        self._spare = _sealed_memory()

    def redirect(self) -> None:
        """Redirect standard input, output and error in the forked child, as the user."""
        null = os.open(os.devnull, os.O_RDWR)
        try:
            output = _open_for_append(self._home / self._name)
        except OSError:  # the server starts anyway
            output = null if self._spare < 0 else self._spare
        for number, descriptor in enumerate((null, output, output)):
            os.dup2(descriptor, number)

    def last_lines(self, environment: Mapping[str, str]) -> str:
        """Return the last lines of this start as plain text, "" without any.

        The hub may be root, so it follows no link in the user's folders, and reads only a regular
        file of the user's own account.
        """
        with contextlib.closing(self._open_log()) as log:
            # A smaller file is new: this start has renamed the old one.
            begin = self._begin if log.size >= self._begin else 0
            written = log.read(begin)
        if not written and self._spare >= 0:
            written = os.pread(self._spare, os.lseek(self._spare, 0, os.SEEK_CUR), 0)
        return last_lines(written.decode(errors="replace"), environment)

    def close(self) -> None:
        """Close our descriptor of the spare memory; a server that writes to it runs on."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _open_log(self) -> "_Log":
        return _Log(self._home, self._name, self._owner)


class _Log:
    """A log file, open for reading; one that is missing or of another kind is empty."""

    def __init__(self, home: Path, name: str, owner: int) -> None:
        self.size = 0
        self._file = -1
        *folders, last = Path(name).parts
        folder = -1
        try:
            folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            for part in folders:
                parent, folder = folder, os.open(part, flags | os.O_DIRECTORY, dir_fd=folder)
                os.close(parent)
            self._file = os.open(last, flags | os.O_NONBLOCK, dir_fd=folder)
        except OSError:
            return
        finally:
            if folder >= 0:
                os.close(folder)
        status = os.fstat(self._file)
        if stat.S_ISREG(status.st_mode) and status.st_uid == owner:
            self.size = status.st_size

    def read(self, begin: int) -> bytes:
        """Return the end of the file from `begin` on, at most `READ_BYTES`, as whole lines."""
        if not self.size:
            return b""
        start = max(begin, self.size - READ_BYTES)
        written = os.pread(self._file, self.size - start, start)
        # A cut line may begin inside a secret, which would not be recognised.
        return written if start == begin else written.partition(b"\n")[2]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def last_lines(text: str, environment: Mapping[str, str]) -> str:
    """Return the last lines of a server's output as plain text, with its secrets masked.

    Secrets are the values of variables with names such as TOKEN, and what follows "token=".
    """
    text = text.replace("\r\n", "\n")
    secrets = {
        value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    lines = _IN_TEXT.sub(r"\1…", _NOT_TEXT.sub("", text)).rstrip().splitlines()[-LAST_LINES:]
    return "\n".join(lines)[-LAST_CHARACTERS:]


def _sealed_memory() -> int:
    """Create a file in memory of at most `SPARE_BYTES`; return its descriptor, -1 if impossible."""
    try:
        memory = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (AttributeError, OSError):  # not Linux, or no descriptor is free
        return -1
    os.ftruncate(memory, SPARE_BYTES)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return memory


def _open_for_append(path: Path) -> int:
    """Open the file for appending; rename one of more than 10 MB to `.1` first.

    Raises:
        OSError: it is no regular file, or cannot be written, as on a full disk.
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
    _check_disk_space(descriptor)
    return descriptor


def _check_disk_space(descriptor: int) -> None:
    """Check that the file can grow by `READ_BYTES`.

    Raises:
        OSError: the disk or the account's quota is full.
    """
    size = os.fstat(descriptor).st_size
    try:
        os.posix_fallocate(descriptor, size, READ_BYTES)
    except OSError as failed:
        if failed.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
    finally:  # also after an error: the file may have grown
        os.ftruncate(descriptor, size)
