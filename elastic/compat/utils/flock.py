"""A file lock between processes, as of `hpo` on a shared directory.

`flock(2)` works over NFS, too (Linux 2.6.12 and later).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class Flock:
    """An exclusive lock of a file, held in a `with` block.

    It also excludes other blocks of the same process: each opens the file itself.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._descriptors: list[int] = []

    def __enter__(self) -> Self:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptors.append(descriptor)
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptors.pop())  # unlocks
