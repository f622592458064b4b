"""Control groups of workers: the driver limits their device memory, the kernel CPU and memory.

Created below the group that is delegated to us, or as root. No foreign group is changed. Linux,
cgroup v2.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

LEAF = "platform"
"""Name of the platform's own group where a group is delegated to it: workers' lie beside it.

The kernel has controllers only below groups without processes of their own.
"""
PASSES = 5
"""Attempts to move a process tree: processes may fork while they are moved."""


class GroupsUnavailable(Exception):
    """No control group can be created; the message is half a sentence."""


class Groups:
    """The platform's control groups, all below one folder."""

    def __init__(self, base: Path, own: str, proc: Path = Path("/proc")) -> None:
        """Use groups below `base`; `own` is our own group. `find` determines both."""
        self._base = base
        self._own = own
        self._proc = proc

    @classmethod
    def find(cls, proc: Path = Path("/proc")) -> "Groups":
        """Create the folder for groups below our own group; beside it, if it is a leaf for us.

        Raises:
            GroupsUnavailable: cgroup v2 is not mounted, or we may not write to it.
        """
        own = group_of(proc / "self")
        parent = mounted(proc) / own.lstrip("/")
        if parent.name == LEAF:  # the service removes empty groups there
            return cls(parent.parent, own, proc)
        base = parent / "runai"
        try:
            base.mkdir(exist_ok=True)
            with (base / "cgroup.procs").open("w"):
                pass
        except OSError as error:
            raise GroupsUnavailable(
                f"no control group may be made in {base.parent} ({error.strerror})"
            ) from error
        for left in base.iterdir():  # empty groups of an earlier agent
            if left.is_dir():
                with contextlib.suppress(OSError):
                    left.rmdir()
        return cls(base, own, proc)

    def path(self, name: str) -> Path:
        """Return the folder of a worker's group; `vision/exp-0` becomes `vision.exp-0`."""
        return self._base / name.replace("/", ".")

    def adopt(self, name: str, process: psutil.Process) -> Path:
        """Move a process and its descendants, present and future, to a separate group.

        Raises:
            GroupsUnavailable: the process is in a foreign group, or the kernel refuses.
            psutil.Error: the process has ended.
        """
        path = self.path(name)
        group = group_of(self._proc / str(process.pid))
        if group != self._own and not group.endswith(f"/{path.name}"):
            raise GroupsUnavailable(f"process {process.pid} is in a control group of its own")
        try:
            path.mkdir(exist_ok=True)
            for _ in range(PASSES):
                members = set(map(int, (path / "cgroup.procs").read_text().split()))
                outside = {p.pid for p in _tree(process)} - members
                if not outside:
                    return path
                for pid in outside:
                    with contextlib.suppress(ProcessLookupError):
                        (path / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise GroupsUnavailable(f"{path} cannot be used ({error.strerror})") from error
        raise GroupsUnavailable(f"process {process.pid} starts others faster than they are moved")

    def remove(self, name: str) -> None:
        """Remove a group if it is empty; otherwise leave it."""
        with contextlib.suppress(OSError):
            self.path(name).rmdir()


def why_none(proc: Path = Path("/proc")) -> str:
    """Return why no control group can be created; "" if one can. Creates nothing.

    The reason is a clause without full stop, for use in a message.
    """
    try:
        parent = mounted(proc) / group_of(proc / "self").lstrip("/")
    except GroupsUnavailable as unavailable:
        return str(unavailable)
    return "" if os.access(parent, os.W_OK) else f"no control group may be made in {parent}"


def _tree(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    yield from process.children(recursive=True)


def mounted(proc: Path) -> Path:
    """Return where cgroup v2 is mounted.

    Raises:
        GroupsUnavailable: it is not.
    """
    for line in (proc / "self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(where)
    raise GroupsUnavailable("this machine has no control groups of version 2")


def group_of(process: Path) -> str:
    """Return the group of a process, given its folder in /proc; "" if it has ended."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
