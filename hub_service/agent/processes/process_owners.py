"""Attribution of processes to workloads.

The workload's own control group decides, else the nearest ancestor, else the worker and the
checkpoint directory named in the process's environment (a detached process; accepted only if the
Unix account matches). PIDs are reused, so entries are keyed by PID and start time. A process that
has just ended is returned once more: its last second belongs to its workload. Requires the host's
PID namespace.
"""

import os
import re
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import psutil

from runai.hub_service.processes.pidfd import PidfdHandles
from runai.hub_service.wire.reports import AgentAllocation

SAME_START_S = 2.0
"""Largest difference between two creation times of the same process. The kernel reports them
relative to a boot time in whole seconds, which each program rounds by itself."""

MAX_ANCESTORS = 64

YOUNG_S = 10.0
"""Age up to which each poll rechecks an unattributed process: exec sets its environment."""

RECHECK_INTERVAL_S = 60.0
"""Interval at which older unattributed processes are rechecked."""


_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})")
"""Pod UID in a control group's name; the systemd cgroup driver writes `_` for `-`."""


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """One process: its name, account and notebook, and the allocation it belongs to, if any."""

    created: float
    """Start time in Unix seconds; 0.0 if the process has ended or is unreadable."""
    allocation: AgentAllocation | None
    account: str
    name: str
    notebook: str = ""
    """File name of the notebook if the process is its kernel or a descendant."""


def _notebook(process: psutil.Process) -> str:
    """Return the name of the notebook that the Jupyter server started the process for, or ""."""
    try:
        return process.environ().get("JPY_SESSION_NAME", "").rpartition("/")[2][:200]
    except psutil.Error:
        return ""


_EXITED_OWNER = ProcessOwner(0.0, None, "", "")

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

_START_FIELD = 19
"""Start time in clock ticks: field of /proc/PID/stat after the name, which may contain spaces."""


class ProcessOwners:
    """Cache of each process's allocation, valid until the allocations or the process change."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Read control groups below `proc`."""
        self._proc = proc
        self._allocations: tuple[AgentAllocation, ...] = ()
        self._roots: dict[int, AgentAllocation] = {}
        self._named_allocations: dict[str, AgentAllocation] = {}
        self._group_allocations: dict[str, AgentAllocation] = {}
        self._accounts: dict[str, set[int]] = {}
        self._owners: dict[int, ProcessOwner] = {}
        self._lifetimes = PidfdHandles()
        self._ticks: dict[int, bytes | None] = {}
        """Start time of each known process, as the kernel writes it."""
        self._last_owners: dict[int, tuple[bytes, ProcessOwner]] = {}
        """Start time and process of each PID at the previous poll, to detect reused PIDs."""
        self._rechecked_at = time.monotonic()

    def set_allocations(self, allocations: Sequence[AgentAllocation]) -> None:
        """Set the current allocations; a change clears the cache."""
        if tuple(allocations) == self._allocations:
            return
        self._allocations = tuple(allocations)
        self._roots = {a.pid: a for a in allocations if a.pid is not None}
        # A worker's name overrides a workload's name, which stands for its first worker.
        self._named_allocations = {a.workload: a for a in reversed(allocations)}
        self._named_allocations |= {a.worker: a for a in allocations}
        self._group_allocations = {a.cgroup: a for a in allocations if a.cgroup}
        self._accounts = {}
        self._owners = {}
        for pid in self._roots:
            # Root processes first: claims by environment count only from their accounts.
            self.owner_of(pid)

    def retain(self, pids: AbstractSet[int]) -> None:
        """Drop all processes except `pids` from the cache.

        Unattributed processes are dropped too while young, and every `RECHECK_INTERVAL_S`: they may
        belong to a workload by now.
        """
        self._last_owners = {
            pid: (ticks, owner)
            for pid, owner in self._owners.items()
            if pid in pids and (ticks := self._ticks.get(pid)) is not None
        }
        recheck_all = time.monotonic() - self._rechecked_at > RECHECK_INTERVAL_S
        if recheck_all:
            self._rechecked_at = time.monotonic()
        young = time.time() - YOUNG_S
        self._owners = {
            pid: owner
            for pid, owner in self._owners.items()
            if pid in pids and (owner.allocation or not (recheck_all or owner.created > young))
        }
        self._ticks = {pid: ticks for pid, ticks in self._ticks.items() if pid in self._owners}
        self._lifetimes.retain(pids)

    def is_stranger(self, pid: int) -> bool:
        """Return True if the cache has the process as belonging to no workload."""
        owner = self._owners.get(pid)
        return owner is not None and owner.allocation is None

    def owner_of(self, pid: int) -> ProcessOwner:
        """Return a process's attribution; for an ended process, that of the previous poll.

        A cached process costs one system call: this runs each second for each process.
        """
        owner = self._owners.get(pid)
        if owner is not None and pid in self._ticks and self._lifetimes.still_runs(pid):
            return owner
        self._lifetimes.open_handle(pid)
        ticks = _start_ticks(pid)
        if owner is not None and ticks is not None and self._ticks.get(pid) == ticks:
            return owner
        try:
            found = self._owner_of_process(psutil.Process(pid), MAX_ANCESTORS)
        except psutil.Error:
            # Its use until its end counts for its workload; the next poll has no owner for it.
            self._owners.pop(pid, None)
            return self._last_owners[pid][1] if pid in self._last_owners else _EXITED_OWNER
        # `ticks` was read before the process: a PID reused in between is attributed again.
        self._ticks[pid] = ticks
        return found

    def previous_owner(self, pid: int) -> tuple[ProcessOwner, float] | None:
        """Return this PID's process at the previous poll, and when it lost the PID.

        That time is the start of the running process, in Unix seconds. None if the running process
        had the PID at the previous poll already.
        """
        previous, ticks = self._last_owners.get(pid), self._ticks.get(pid)
        if previous is None or ticks is None or previous[0] == ticks or pid not in self._owners:
            return None
        # `create_time` is too coarse: it adds a boot time in whole seconds.
        return previous[1], _boot_time() + int(ticks) / _TICKS_A_SECOND

    def allocation_of(self, process: psutil.Process) -> AgentAllocation | None:
        """Return the allocation that a process belongs to; None for other processes.

        Raises:
            psutil.Error: the process has ended, or cannot be read.
        """
        return self._owner_of_process(process, MAX_ANCESTORS).allocation

    def _owner_of_process(self, process: psutil.Process, depth: int) -> ProcessOwner:
        """Return a process's attribution from the cache, else after a search; cache it."""
        created = process.create_time()
        process_owner = self._owners.get(process.pid)
        if process_owner is None or process_owner.created != created:
            allocation = self._find_allocation(process, created, depth)
            notebook = "" if allocation is None else _notebook(process)
            process_owner = ProcessOwner(
                created, allocation, process.username(), process.name(), notebook
            )
            self._owners[process.pid] = process_owner
        return process_owner

    def _find_allocation(
        self, process: psutil.Process, created: float, depth: int
    ) -> AgentAllocation | None:
        """Return a process's allocation: its own, by its control group, parent or environment."""
        root = self._roots.get(process.pid)
        if root is not None and (
            root.created is None or abs(root.created - created) < SAME_START_S
        ):
            return self._with_account(root, process)
        if (
            self._group_allocations
            and (allocation := self._by_control_group(process.pid)) is not None
        ):
            return self._with_account(allocation, process)
        if (allocation := self._by_parent(process, created, depth)) is not None:
            return self._with_account(allocation, process)
        return self._by_environment(process)

    def _with_account(
        self, allocation: AgentAllocation, process: psutil.Process
    ) -> AgentAllocation:
        """Record the process's Unix account as one of the workload's; return the allocation."""
        self._accounts.setdefault(allocation.workload, set()).add(process.uids().real)
        return allocation

    def _by_control_group(self, pid: int) -> AgentAllocation | None:
        """Return the allocation by control group, which a process cannot leave by itself."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            path = line.split(":", 2)[-1]
            # First match only: containers choose the names of groups below the kubelet's.
            if (pod := _POD.search(path)) is not None:
                uid = pod[1].replace("_", "-")
                if (allocation := self._group_allocations.get(uid)) is not None:
                    return allocation
            elif line.startswith("0::"):
                for group in (path, *map(str, Path(path).parents)):
                    if (allocation := self._group_allocations.get(group)) is not None:
                        return allocation
        return None

    def _by_parent(
        self, process: psutil.Process, created: float, depth: int
    ) -> AgentAllocation | None:
        """Return the allocation of a process's parent, over at most `depth` generations."""
        if depth == 0:
            return None
        try:
            pid = process.ppid()
            if not pid:
                return None
            parent = self._owner_of_process(psutil.Process(pid), depth - 1)
        except psutil.Error:
            return None
        # A younger process is not the parent: the parent ended and its PID was reused.
        return parent.allocation if parent.created <= created else None

    def _by_environment(self, process: psutil.Process) -> AgentAllocation | None:
        """Return the allocation that a process's environment names, if it may be its own."""
        try:
            environment = process.environ()
        except psutil.Error:
            return None
        claimed = self._named_allocations.get(
            environment.get("RUNAI_WORKER", "")
        ) or self._named_allocations.get(environment.get("RUNAI_WORKLOAD", ""))
        if claimed is None or claimed.checkpoint_dir not in (
            "",
            environment.get("RUNAI_CHECKPOINT_DIR"),
        ):
            return None  # another checkpoint directory: same name, another installation
        # Any user can write a name into an environment: accept the workload's accounts only.
        accounts = self._accounts.get(claimed.workload)
        return claimed if accounts is None or process.uids().real in accounts else None


def _boot_time() -> float:
    """Return the machine's boot time in Unix seconds, exact to microseconds."""
    # Minimum of three: an interrupt between the two clock reads makes the sum too large.
    return min(-time.clock_gettime(time.CLOCK_BOOTTIME) + time.time() for _ in range(3))


def _start_ticks(pid: int) -> bytes | None:
    """Return a process's start time as the kernel writes it; None if /proc has none."""
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        stat = os.read(file, 4096)
    except OSError:
        return None
    finally:
        os.close(file)
    fields = stat.rpartition(b")")[2].split(None, _START_FIELD + 1)
    return fields[_START_FIELD] if len(fields) > _START_FIELD else None
