"""A lock that processes share through a file, as `hpo` does on a shared directory.

Knows `flock(2)`, which works over NFS too (Linux 2.6.12 and later). Exported under the original
library's name.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class Flock:
    """Hold the lock of a file in a `with` block; who comes second waits.

    Within a process it is one lock too: every block opens the file anew.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._held: list[int] = []

    def __enter__(self) -> Self:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(descriptor)
            raise
        self._held.append(descriptor)
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._held.pop())  # which unlocks
