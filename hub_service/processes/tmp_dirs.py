"""Temporary folders (TMPDIR) of jobs and sessions: each has one of its own, which ends with it.

Tools leave files and sockets "for this machine" there under fixed names, where a program of another
user's job would find them. All folders of a data directory lie in one folder of the platform's
account, so that no user can make, rename or replace one.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
import subprocess
import threading
import time
from base64 import b32encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from runai.hub_service.processes.folder_lock import is_locked

MAX_PATH_BYTES: Final = 34
"""Length of a path: a socket's has at most 107 bytes, so 72 are left below; Ray needs 68."""
DEFAULT_BASE: Final = Path("/tmp")  # noqa: S108 - names in it are random
TRY_AGAIN_S: Final = 10.0
_TRASH: Final = ".trash"
"""Name of the folder whose content is being removed."""
_NO_PROCESS: Final = {errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_TMP_DIR: Final = re.compile(r"/(.*/)?runai-[a-z2-7]{6}/[a-z2-7]{8}(/.*)?")
_REMOVAL: Final = (
    # A folder that cannot be written keeps its files.
    r'find "$0" -xdev -type d ! -perm -700 -exec chmod u+rwx {} \; ;'
    ' exec rm -rf --one-file-system -- "$0"'
)


def is_in_tmp_dir(path: str) -> bool:
    """Return True if a path lies in the temporary folder of a job or session."""
    return _TMP_DIR.fullmatch(path) is not None


class TmpDirs:
    """The temporary folders of one data directory."""

    def __init__(
        self, data_dir: Path, *, for_all: bool = False, environ: Mapping[str, str] = os.environ
    ) -> None:
        """Change nothing; `for_all`: other accounts than ours use the folders."""
        # A copy of the directory has the link, and another inode.
        self._link = data_dir / f"tmp-{data_dir.stat().st_ino}"
        self._base = _base(environ.get("TMPDIR", ""), for_all=for_all)
        self._used = set[str]()
        """Names of folders that are in use as far as this process knows."""

    def find(self, name: str) -> Path | None:
        """Return the folder of a job or session, if it is there."""
        with suppress(OSError):
            path = self._link.readlink() / _digest(name)
            return path if path.is_dir() else None
        return None

    def make(self, name: str, uid: int | None = None, gid: int = 0) -> Path:
        """Make the folder of a job or session, empty; one that is in use stays as it is.

        `uid` None: it is our own account's.
        """
        while True:
            parent = self._make_parent()
            path = parent / _digest(name)
            if name not in self._used and not is_locked(path):
                self._remove_or_trash(path)
            try:
                path.mkdir(0o700)
            except FileExistsError:
                pass
            except FileNotFoundError:  # the parent ended with the last other folder
                continue
            if uid is not None:
                os.chown(path, uid, gid, follow_symlinks=False)
            self._used.add(name)
            return path

    def remove(self, name: str) -> None:
        """Begin to remove the folder of an ended job or session, if it is there."""
        self._used.discard(name)
        if (path := self.find(name)) is not None:
            with suppress(OSError):  # the next start tries again
                self._remove_or_trash(path)

    def sweep(self, running: Iterable[str]) -> None:
        """Begin to remove all folders that no process uses, except of `running` names."""
        self._used |= set(running)
        spared = set(map(_digest, self._used))
        for path in self.left():
            with suppress(OSError):
                if path.parent.name == _TRASH:
                    _begin_removal(path)
                elif path.name not in spared:
                    self._remove_or_trash(path)

    def left(self) -> list[Path]:
        """Return the folders that no process uses: left over, or being removed."""
        try:
            parent = self._link.readlink()
            if not _is_ours(parent):
                return []
            found = [path for path in parent.iterdir() if path.name != _TRASH]
            unused = [path for path in found if not is_locked(path)]
        except OSError:
            return []
        named = set(_named_by_processes()) if unused else set()
        aside = parent / _TRASH
        return [
            *(path for path in unused if os.fsencode(path) not in named),
            *(aside.iterdir() if aside.is_dir() else ()),
        ]

    def _make_parent(self) -> Path:
        """Return the folder of all folders; its name is random, so no user can make it before."""
        while True:
            try:
                parent = self._link.readlink()
            except FileNotFoundError:
                with suppress(FileExistsError):  # another process was first
                    self._link.symlink_to(
                        self._base / f"runai-{_letters(secrets.token_bytes(5))[:6]}"
                    )
                continue
            if parent.parent == self._base or parent.exists():
                with suppress(FileExistsError):
                    parent.mkdir(0o711)
                    parent.chmod(0o711)
                if _is_ours(parent):
                    return parent
            self._link.unlink(missing_ok=True)  # another account's by now, or of another TMPDIR

    def _remove_or_trash(self, path: Path) -> None:
        """Remove an empty folder; begin the removal of any other."""
        try:
            path.rmdir()  # most are empty
        except FileNotFoundError:
            return
        except OSError:
            aside = path.parent / _TRASH / f"{path.name}-{secrets.token_hex(4)}"
            with suppress(FileExistsError):
                aside.parent.mkdir(0o711)
                aside.parent.chmod(0o711)
            path.rename(aside)
            _begin_removal(aside)
        else:
            with suppress(OSError):
                path.parent.rmdir()


def _base(given: str, *, for_all: bool) -> Path:
    """Return the platform's own TMPDIR if it is short and can be used, else /tmp."""
    path, longest = Path(given), MAX_PATH_BYTES - len("/runai-abcdef/abcdefgh")
    with suppress(OSError):
        modes = [folder.stat().st_mode for folder in (path, *path.parents)]
        is_safe = not modes[0] & stat.S_IWOTH or modes[0] & stat.S_ISVTX
        can_enter = not for_all or all(mode & stat.S_IXOTH for mode in modes)
        is_short = path.is_absolute() and len(os.fsencode(path)) <= longest
        if is_short and is_safe and can_enter and os.access(path, os.W_OK | os.X_OK):
            return path
    return DEFAULT_BASE


def _digest(name: str) -> str:
    return _letters(hashlib.sha256(name.encode()).digest()[:5])


def _letters(data: bytes) -> str:
    """Return five bytes as eight letters."""
    return b32encode(data).decode().lower()


def _is_ours(parent: Path) -> bool:
    """Return True if a folder is our account's, and no other may write to it."""
    with suppress(OSError):
        found = parent.lstat()
        is_folder, closed = stat.S_ISDIR(found.st_mode), not found.st_mode & 0o022
        return is_folder and closed and found.st_uid == os.geteuid()
    return False


def _named_by_processes() -> Iterator[bytes]:
    """Yield the TMPDIR of each process that we may read."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            for variable in file.read_bytes().split(b"\0"):
                name, _, value = variable.partition(b"=")
                if name == b"TMPDIR":
                    yield value


def _begin_removal(aside: Path) -> None:
    with suppress(RuntimeError):  # no thread is left: the next start tries again
        threading.Thread(target=_remove, args=(aside,), daemon=True).start()


def _remove(aside: Path) -> None:
    """Remove a folder by a process of its owner: no link is followed, no file system entered."""
    with suppress(OSError):
        owner = aside.lstat()
        options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        if owner.st_uid != os.geteuid():
            options |= {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        while True:
            try:
                subprocess.run(  # noqa: S603 - our own command
                    ["/bin/sh", "-c", _REMOVAL, str(aside)],
                    cwd="/",
                    env={"PATH": os.environ.get("PATH", os.defpath)},
                    start_new_session=True,
                    check=False,
                    **options,
                )
                break
            except OSError as failed:
                if failed.errno not in _NO_PROCESS:
                    raise
            time.sleep(TRY_AGAIN_S)
    # The folder itself is in ours, from which its owner can remove nothing.
    for folder in (aside, aside.parent, aside.parent.parent):
        with suppress(OSError):
            folder.rmdir()
