"""Atomic checkpoint files: `save`, `load`, `latest`.

The caller's `write` and `read` define the content. A save that is killed at any point leaves the
previous file. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

_NAME = re.compile(r"update-(\d{10,})\.ckpt")
_PART = re.compile(r"\.update-(\d{10,})\.ckpt\.\d+")
# The checksum follows the content: zip files and torch.load search from the end for their own
# directory and ignore trailing data, so the files open without this library.
_TRAILER = re.compile(rb"\nrunai crc32 ([0-9a-f]{8}) ([0-9a-f]{16})\n")
_TRAILER_BYTES = len("\nrunai crc32 01234567 0123456789abcdef\n")
_BLOCK = 1 << 20


class CheckpointError(RuntimeError):
    """An incomplete checkpoint, or a directory with incomplete ones only."""


def save(
    directory: str | os.PathLike[str],
    update: int,
    write: Callable[[BinaryIO], object],
    *,
    keep: int = 2,
) -> Path:
    """Write a checkpoint atomically, then delete all but the last `keep`.

    Files of later updates are deleted, too: they belong to an abandoned history.

    Args:
        directory: of a job's checkpoints; created if missing. One process saves at a time.
        update: updates of the weights so far.
        write: writes the content to an open file.
        keep: number of checkpoints that remain, including this one.

    Raises:
        OSError: if the file cannot be written; earlier ones remain.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"update-{update:010d}.ckpt"
    part = folder / f".{path.name}.{os.getpid()}"
    try:
        with part.open("w+b") as file:
            write(file)
            _append_sum(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)  # noqa: PTH105 - as os.fsync beside it
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    _sync_directory(folder)
    _delete_old(folder, update, keep)
    return path


def load(directory: str | os.PathLike[str], read: Callable[[BinaryIO], T]) -> tuple[int, T] | None:
    """Load the newest complete checkpoint: its update and the result of `read`.

    A truncated or altered file is skipped with a warning. The checksum follows the content: `read`
    must find the end of its own data, as zip files and `torch.load` do.

    Returns:
        None without a checkpoint.

    Raises:
        CheckpointError: if checkpoints exist and none can be read: a silent fresh start would
            lose the training.
    """
    paths = _newest_first(Path(directory))
    for path in paths:
        try:
            with path.open("rb") as file:
                _check_sum(file, path)
                file.seek(0)
                return _update_of(path), read(file)
        except FileNotFoundError:
            continue  # deleted by a concurrent save, which has written a newer one
        except (CheckpointError, OSError) as error:
            warnings.warn(f"{error} The checkpoint before it is used.", stacklevel=2)
    if paths and (left := _newest_first(Path(directory))):
        raise CheckpointError(
            f"None of the {len(left)} checkpoints in {directory} can be read. "
            "Remove them to begin anew, or name another directory."
        )
    return None


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """Return the path of the newest complete checkpoint, None without one."""
    for path in _newest_first(Path(directory)):
        with contextlib.suppress(CheckpointError, OSError), path.open("rb") as file:
            _check_sum(file, path)
            return path
    return None


def _newest_first(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("update-*.ckpt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=_update_of, reverse=True)


def _update_of(path: Path) -> int:
    return int(path.name.removeprefix("update-").removesuffix(".ckpt"))


def _append_sum(file: BinaryIO) -> None:
    file.seek(0)
    total, size = _sum(file)
    file.seek(0, os.SEEK_END)
    file.write(b"\nrunai crc32 %08x %016x\n" % (total, size))


def _check_sum(file: BinaryIO, path: Path) -> None:
    size = file.seek(0, os.SEEK_END) - _TRAILER_BYTES
    if size >= 0:
        file.seek(size)
        trailer = _TRAILER.fullmatch(file.read())
        if trailer and int(trailer[2], 16) == size:
            file.seek(0)
            if _sum(file, size)[0] == int(trailer[1], 16):
                return
            raise CheckpointError(f"{path} was altered: its sum is another.")
    raise CheckpointError(f"{path} is cut off.")


def _sum(file: BinaryIO, size: int | None = None) -> tuple[int, int]:
    """Return the CRC-32 of the next `size` bytes, or of all, and their number."""
    total = seen = 0
    while block := file.read(_BLOCK if size is None else min(_BLOCK, size - seen)):
        total, seen = zlib.crc32(block, total), seen + len(block)
    return total, seen


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete_old(folder: Path, update: int, keep: int) -> None:
    paths = _newest_first(folder)
    written = [path for path in paths if _update_of(path) <= update]
    parts = [
        part
        for part in folder.iterdir()
        if (match := _PART.fullmatch(part.name)) and int(match[1]) < update
    ]
    for path in [*written[keep:], *paths[: len(paths) - len(written)], *parts]:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
