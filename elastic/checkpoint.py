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
_PARTIAL_NAME = re.compile(r"\.update-(\d{10,})\.ckpt\.\d+")
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
    partial = folder / f".{path.name}.{os.getpid()}"
    try:
        with partial.open("w+b") as file:
            write(file)
            _append_checksum(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)  # noqa: PTH105 - as os.fsync beside it
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
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
                _verify_checksum(file, path)
                file.seek(0)
                return _update_of(path), read(file)
        except FileNotFoundError:
            continue  # deleted by a concurrent save, which has written a newer one
        except (CheckpointError, OSError) as error:
            warnings.warn(f"{error} The checkpoint before it is used.", stacklevel=2)
    if paths and (unreadable := _newest_first(Path(directory))):
        raise CheckpointError(
            f"None of the {len(unreadable)} checkpoints in {directory} can be read. "
            "Remove them to begin anew, or name another directory."
        )
    return None


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """Return the path of the newest complete checkpoint, None without one."""
    for path in _newest_first(Path(directory)):
        with contextlib.suppress(CheckpointError, OSError), path.open("rb") as file:
            _verify_checksum(file, path)
            return path
    return None


def _newest_first(folder: Path) -> list[Path]:
    paths = [path for path in folder.glob("update-*.ckpt") if _NAME.fullmatch(path.name)]
    return sorted(paths, key=_update_of, reverse=True)


def _update_of(path: Path) -> int:
    return int(path.name.removeprefix("update-").removesuffix(".ckpt"))


def _append_checksum(file: BinaryIO) -> None:
    file.seek(0)
    crc32, size = _crc32_and_size(file)
    file.seek(0, os.SEEK_END)
    file.write(b"\nrunai crc32 %08x %016x\n" % (crc32, size))


def _verify_checksum(file: BinaryIO, path: Path) -> None:
    """Compare a file with its trailer.

    Raises:
        CheckpointError: it is truncated or altered.
    """
    size = file.seek(0, os.SEEK_END) - _TRAILER_BYTES
    if size >= 0:
        file.seek(size)
        trailer = _TRAILER.fullmatch(file.read())
        if trailer and int(trailer[2], 16) == size:
            file.seek(0)
            if _crc32_and_size(file, size)[0] == int(trailer[1], 16):
                return
            raise CheckpointError(f"{path} was altered: its sum is another.")
    raise CheckpointError(f"{path} is cut off.")


def _crc32_and_size(file: BinaryIO, size: int | None = None) -> tuple[int, int]:
    """Return the CRC-32 of the next `size` bytes, or of all, and their number."""
    crc32 = count = 0
    while block := file.read(_BLOCK if size is None else min(_BLOCK, size - count)):
        crc32, count = zlib.crc32(block, crc32), count + len(block)
    return crc32, count


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete_old(folder: Path, update: int, keep: int) -> None:
    """Delete surplus checkpoints, later updates' ones, and partial files of killed saves."""
    paths = _newest_first(folder)
    current = [path for path in paths if _update_of(path) <= update]
    later = paths[: len(paths) - len(current)]
    partials = [
        path
        for path in folder.iterdir()
        if (match := _PARTIAL_NAME.fullmatch(path.name)) and int(match[1]) < update
    ]
    for path in [*current[keep:], *later, *partials]:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
