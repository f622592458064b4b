"""Control groups of version 1, one for each node, below the group of the process that makes them.

Pods' usage stays within our own limits. A killed run leaves empty groups behind, which `remove`
deletes. For `cluster` and `node`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from waiting import eventually

MOUNTED = Path("/sys/fs/cgroup")
INHERITED = ("cpuset.cpus", "cpuset.mems")
"""Files that are empty in a new group, and must be filled before a process can join it."""


def hierarchies() -> dict[str, Path]:
    """Return this process's group in each hierarchy, by the hierarchy's name."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        name = controllers.removeprefix("name=")
        if number != "0" and (MOUNTED / name).is_dir():
            found[name] = MOUNTED / name / path.lstrip("/")
    return found


def below(name: str) -> dict[str, Path]:
    """Return the path of a group of that name in each hierarchy, below this process's group."""
    return {hierarchy: folder / name for hierarchy, folder in hierarchies().items()}


def make(groups: Mapping[str, Path]) -> None:
    """Make a group in each hierarchy."""
    for folder in groups.values():
        folder.mkdir(parents=True)
        for file in INHERITED:
            if (folder / file).exists():
                _inherit(folder, file)


def remove(folders: Iterable[Path]) -> None:
    """Remove groups and their subgroups, once their last processes are gone, if they exist."""
    for folder in folders:
        eventually(partial(_removed, folder), what=f"nothing runs in {folder}")


def _removed(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # a killed process still exists for a moment
            Path(folder).rmdir()
    return not top.exists()


def _inherit(folder: Path, file: str) -> None:
    if not (folder.parent / file).read_text().strip():
        _inherit(folder.parent, file)
    (folder / file).write_text((folder.parent / file).read_text())
