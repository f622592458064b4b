"""A control group for each workload with a share, so that the driver can limit all its processes.

Made below our own group, where we may: as root, or where it was delegated to us. No controller is
switched on and nobody else's group is touched. Linux, version 2 of the hierarchy.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

PASSES = 5
"""A process may start another while it is moved: look again, so often."""


class GroupsUnavailable(Exception):
    """No group can be had; its half sentence says why."""


class Groups:
    """The groups that we have made, all below one folder."""

    def __init__(self, base: Path, own: str, proc: Path = Path("/proc")) -> None:
        """Use `find` instead, unless everything is known."""
        self._base = base
        self._own = own
        self._proc = proc

    @classmethod
    def find(cls, proc: Path = Path("/proc")) -> "Groups":
        """Return a place for groups below our own.

        Raises:
            GroupsUnavailable: there is no hierarchy of version 2, or we may not write to it.
        """
        root = _mounted(proc)
        own = _group_of(proc / "self")
        base = root / own.lstrip("/") / "runai"
        try:
            base.mkdir(exist_ok=True)
            with (base / "cgroup.procs").open("w"):
                pass
        except OSError as error:
            raise GroupsUnavailable(
                f"no control group may be made in {base.parent} ({error.strerror})"
            ) from error
        for left in base.iterdir():  # by an agent before us, of workloads that are gone
            if left.is_dir():
                with contextlib.suppress(OSError):
                    left.rmdir()
        return cls(base, own, proc)

    def path(self, name: str) -> Path:
        """Return where a worker's group is; `vision/exp-0` is one folder."""
        return self._base / name.replace("/", ".")

    def adopt(self, name: str, process: psutil.Process) -> Path:
        """Put a process and all its descendants, now and later, into a group of its own.

        Raises:
            GroupsUnavailable: somebody else has put it into a group, or the kernel refuses.
            psutil.Error: the process is gone.
        """
        path = self.path(name)
        group = _group_of(self._proc / str(process.pid))
        if group != self._own and not group.endswith(f"/{path.parent.name}/{path.name}"):
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
        """Remove a group when its last process is gone; until then it stays."""
        with contextlib.suppress(OSError):
            self.path(name).rmdir()


def why_none(proc: Path = Path("/proc")) -> str:
    """Say, without making any, why no group could be made, as half a sentence; "" if one could."""
    try:
        parent = _mounted(proc) / _group_of(proc / "self").lstrip("/")
    except GroupsUnavailable as unavailable:
        return str(unavailable)
    return "" if os.access(parent, os.W_OK) else f"no control group may be made in {parent}"


def _tree(process: psutil.Process) -> Iterator[psutil.Process]:
    yield process
    yield from process.children(recursive=True)


def _mounted(proc: Path) -> Path:
    for line in (proc / "self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(where)
    raise GroupsUnavailable("this machine has no control groups of version 2")


def _group_of(process: Path) -> str:
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
