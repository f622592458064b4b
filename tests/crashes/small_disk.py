"""A separate file system that can be filled to the last byte, and files that cannot be written.

Both are the kernel's: a small ext4 in a file, and its attribute `immutable`, which tmpfs does not
enforce for open files. Needs root and permission to mount (the capability `mounts`).
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

FILL_BYTES = 1 << 20


class SmallDisk:
    """A folder on which a small file system is mounted."""

    def __init__(self, folder: Path, mib: int) -> None:
        """Create an ext4 image beside the folder, and mount it on the folder."""
        self.folder = folder
        self._filler = folder / ".filler"
        image = folder.with_suffix(".ext4")
        with image.open("wb") as file:
            file.truncate(mib << 20)
        _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
        _run("mount", "-o", "loop", str(image), str(folder))
        folder.chmod(0o700)

    def fill(self) -> None:
        """Fill the disk; the next call takes the space that other processes freed meanwhile."""
        size = FILL_BYTES
        with self._filler.open("ab") as filler:
            while size:
                try:
                    os.posix_fallocate(filler.fileno(), filler.tell(), size)
                    filler.seek(0, os.SEEK_END)
                except OSError as full:
                    if full.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def take_all_files(self) -> None:
        """Use up all inodes, and leave the bytes free."""
        folder = self.folder / ".many"
        folder.mkdir()
        with suppress(OSError):  # until it is full
            for number in count():
                os.close(os.open(folder / str(number), os.O_CREAT | os.O_WRONLY))

    def give_back_files(self) -> None:
        """Undo `take_all_files`."""
        shutil.rmtree(self.folder / ".many")

    def make_room(self) -> None:
        """Free the space that `fill` took."""
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Unmount the disk lazily: it disappears when no process uses it."""
        _run("umount", "--lazy", str(self.folder))


def immutable(files: Iterable[Path], *, are: bool) -> None:
    """Make files immutable, even for processes that have them open; or undo that."""
    _run("chattr", "+i" if are else "-i", *(str(path) for path in files))


def why_no_mounts() -> str:
    """Return the reason why this machine cannot mount or protect files; "" if it can."""
    if os.geteuid() != 0:
        return "only root may mount file systems and make files immutable"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "disk")
        folder.mkdir()
        try:
            disk = SmallDisk(folder, 1)
        except (OSError, subprocess.CalledProcessError) as failed:
            return f"no file system can be mounted: {failed}"
        try:
            file = disk.folder / "file"
            with file.open("ab", buffering=0) as opened:
                immutable([file], are=True)
                with suppress(PermissionError):
                    opened.write(b"x")
                    return "the attribute `immutable` does not hold"
            immutable([file], are=False)
        except (OSError, subprocess.CalledProcessError) as failed:
            return f"the kernel has no attribute `immutable` there: {failed}"
        finally:
            disk.unmount()
    return ""


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
