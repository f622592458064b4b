"""Directory that an elastic job's workers share with the service, for messages as files.

The job's account owns it and may put anything there, while the service may be root: so it follows
no links, opens no pipes or other accounts' directories, and parses only a bounded size.
"""

import contextlib
import json
import os
import stat
from collections.abc import Generator, Iterable
from pathlib import Path

from runai.hub_service.wire.elastic_messages import Target, WorkerStatus

MAX_BYTES = 64 * 1024
_TEMPORARY_TARGET = ".target.json.new"


class ElasticDir:
    """`target.json`, written by the service, and `status/WORKER.json`, written by each worker."""

    def __init__(self, path: Path, uid: int | None) -> None:
        """Set path and account (None: the service's). The workers' supervisors create it."""
        self.path = path
        self._uid = os.getuid() if uid is None else uid

    def write_target(self, target: Target) -> bool:
        """Replace the target; return False if the directory does not exist."""
        with self._owned_directory(self.path) as folder:
            if folder is None:
                return False
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_TEMPORARY_TARGET, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(_TEMPORARY_TARGET, flags, 0o600, dir_fd=folder)
            try:
                if os.getuid() != self._uid:
                    os.fchown(file, self._uid, -1)
                os.write(file, json.dumps(target.to_json()).encode())
            finally:
                os.close(file)
            os.rename(_TEMPORARY_TARGET, "target.json", src_dir_fd=folder, dst_dir_fd=folder)
            return True

    def statuses(self, workers: Iterable[str]) -> dict[str, WorkerStatus]:
        """Return the workers' last statuses; missing and invalid ones are left out."""
        found: dict[str, WorkerStatus] = {}
        with self._owned_directory(self.path / "status") as folder:
            for worker in workers if folder is not None else ():
                with contextlib.suppress(OSError, RecursionError, ValueError):
                    message = json.loads(_read(_file_of(worker), folder))
                    if isinstance(message, dict):
                        found[worker] = WorkerStatus.from_json(message, worker)
        return found

    def forget_status(self, worker: str) -> None:
        """Remove the status of a worker's earlier start."""
        with (
            self._owned_directory(self.path / "status") as folder,
            contextlib.suppress(FileNotFoundError),
        ):
            if folder is not None:
                os.unlink(_file_of(worker), dir_fd=folder)

    @contextlib.contextmanager
    def _owned_directory(self, path: Path) -> Generator[int | None]:
        """Yield a directory's descriptor if the account owns it; else, or for a link, None."""
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            yield folder if os.fstat(folder).st_uid == self._uid else None
        finally:
            os.close(folder)


def _file_of(worker: str) -> str:
    """Return the name of a worker's status file."""
    # Workers are named `project/name-0`; the file has the last part.
    return f"{worker.rpartition('/')[2]}.json"


def _read(name: str, folder: int | None) -> bytes:
    """Return a regular file's first bytes; b"" for anything else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(name, flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return b""
        return os.read(file, MAX_BYTES)
    finally:
        os.close(file)
