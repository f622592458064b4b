"""Control groups that hold workers to the CPU and memory that they request. Linux, cgroup v2.

The kernel enables controllers only below a group without processes of its own. So the hub must be
started in a leaf, `platform`, of the group that is delegated to it, as systemd does by
`DelegateSubgroup=platform`. Each worker gets a group beside the leaf, directly below the delegated
group: so one write there turns all of it off, which systemd needs before it can start the unit
again. Only workers' processes are moved.
"""

import contextlib
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path, PurePosixPath

import psutil

from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.limits.cgroups import LEAF, Groups, GroupsUnavailable, group_of, mounted
from runai.hub_service.model.records import Process, WorkloadSpec
from runai.hub_service.model.workload_spec import MIN_CPU_MILLI

LOG = logging.getLogger("runai.service")
PROC = Path("/proc")

CONTROLLERS = ("cpu", "memory")
WEIGHT_PER_CPU = 100
"""The kernel's default: the platform, and a worker that requests no CPU, weigh as one CPU."""
MAX_WEIGHT = 10_000
MIB = 2**20
SETUP_HINT = "See docs/operations.md, CPU and memory: three lines of its systemd unit enforce them."


class RequestGroups:
    """The control groups of all workers, below the group that is delegated to the platform."""

    def __init__(self, base: Path, proc: Path = PROC) -> None:
        """Use groups below `base`; `enable` determines it."""
        own = group_of(proc / "self")
        self._groups = Groups(base, own, proc)
        self._delegated = PurePosixPath(own).parent
        self._proc = proc

    @classmethod
    def enable(cls, proc: Path = PROC) -> "RequestGroups | None":
        """Enable the controllers and remove empty groups; return None where the kernel has none."""
        try:
            base = delegated_group("self", proc)
            (base / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in CONTROLLERS))
        except (GroupsUnavailable, OSError) as failed:
            LOG.info("requested CPU and memory are not enforced: %s. %s", failed, SETUP_HINT)
            return None
        for left in base.iterdir():
            if left.is_dir():
                with contextlib.suppress(OSError):
                    left.rmdir()
        return cls(base, proc)

    def enforce_request(self, worker: str, spec: WorkloadSpec) -> str:
        """Make a worker's group with its amounts; return the file to join it, "" if refused.

        The weight is a share of busy CPUs and no cap; of the minimum request it is that of a CPU.
        Memory that is only a default is no limit.
        """
        group = self._groups.path(worker)
        is_above_min = spec.cpu_milli > MIN_CPU_MILLI
        weight = spec.cpu_milli * WEIGHT_PER_CPU // 1000 if is_above_min else WEIGHT_PER_CPU
        is_limited = spec.memory_asked and spec.memory_mib
        try:
            group.mkdir(exist_ok=True)
            (group / "cpu.weight").write_text(str(min(max(weight, 1), MAX_WEIGHT)))
            (group / "memory.max").write_text(str(spec.memory_mib * MIB) if is_limited else "max")
        except OSError as failed:
            LOG.warning("CPU and memory of %s are not enforced: %s", worker, failed)
            return ""
        return str(group / "cgroup.procs")

    def adopt(self, worker: str, spec: WorkloadSpec, process: Process) -> None:
        """Move the processes of a session, which its spawner started, to its group."""
        try:
            if self.enforce_request(worker, spec):
                self._groups.adopt(worker, psutil.Process(process.pid))
        except (GroupsUnavailable, psutil.Error) as failed:
            LOG.warning("CPU and memory of %s are not enforced: %s", worker, failed)

    def is_in_group(self, worker: str, pid: int) -> bool | None:
        """Return True if a process lies in a worker's group, False if in another's, else None."""
        group = PurePosixPath(group_of(self._proc / str(pid)))
        if group.parent != self._delegated or group.name == LEAF:
            return None
        return group.name == self._groups.path(worker).name

    def explain_exit(self, worker: str, spec: WorkloadSpec, exit_status: ExitStatus) -> ExitStatus:
        """Return a worker's exit, with its memory limit as the cause if that killed it."""
        if (
            exit_status.exit_code == -signal.SIGKILL
            and not exit_status.text
            and self._was_killed_over_limit(worker)
        ):
            amount = f"the {spec.memory_mib} MiB of memory that it requested"
            return replace(exit_status, text=f"used more than {amount}, so the kernel killed it")
        return exit_status

    def remove(self, worker: str) -> None:
        """Remove the group of a worker that has ended."""
        self._groups.remove(worker)

    def _was_killed_over_limit(self, worker: str) -> bool:
        """Return True if the kernel killed a process because its group reached its limit."""
        try:
            lines = (self._groups.path(worker) / "memory.events").read_text().splitlines()
        except OSError:
            return False
        count = dict(line.split() for line in lines)
        return count.get("oom", "0") != "0" and count.get("oom_kill", "0") != "0"


def delegated_group(pid: int | str, proc: Path = PROC) -> Path:
    """Return the delegated group in whose leaf a process lies. Changes nothing.

    Raises:
        GroupsUnavailable: there is none, or its controllers cannot be enabled.
    """
    leaf = mounted(proc) / group_of(proc / str(pid)).lstrip("/")
    if leaf.name != LEAF:
        raise GroupsUnavailable(f"the platform runs in {leaf}, not in a group named {LEAF}")
    base = leaf.parent
    with contextlib.suppress(OSError):
        available = (base / "cgroup.controllers").read_text().split()
        if missing := [name for name in CONTROLLERS if name not in available]:
            raise GroupsUnavailable(f"{base} has no controller for {' and '.join(missing)}")
        if os.access(base / "cgroup.subtree_control", os.W_OK):
            return base
    raise GroupsUnavailable(f"no control group may be made in {base}")
