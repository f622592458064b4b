"""Which process belongs to which workload.

By its control group where the workload has one of its own, else by its nearest ancestor; one that
detached itself still names its worker and its checkpoints in its environment (believed only where
the Unix account agrees). A number is used again, so all is remembered by number and start time, and
who just ended is told once more: its last second is its workload's. Used by both device sources;
runs where the machine's process numbers are seen.
"""

import os
import re
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

import psutil

from runai.hub_service.processes.pidfd import Lifetimes
from runai.hub_service.wire.agent_reports import AgentAllocation

SAME_START_S = 2.0
"""Creation times nearer than this are one process: the kernel gives them relative to a boot time
in whole seconds, which each program rounds for itself."""

MAX_ANCESTORS = 64

YOUNG_S = 10.0
"""A process may become a workload's while it is younger: it gets its environment at its exec."""

LOOK_AGAIN_S = 60.0
"""How often the others that belong to nobody are looked at again."""


_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})")
"""A pod's UID in the name of its control group; systemd's driver writes `_` for `-`."""


@dataclass(frozen=True, slots=True)
class Whose:
    """One process: what it is called, and the allocation that it belongs to, if to any."""

    created: float
    """When it was started, in Unix seconds; 0.0 for one that is gone or not ours to see."""
    owner: AgentAllocation | None
    account: str
    name: str
    notebook: str = ""
    """The file name of the notebook whose kernel it is, or belongs to."""


def _notebook(process: psutil.Process) -> str:
    """Return which notebook Jupyter's server started it for, if it did."""
    try:
        return process.environ().get("JPY_SESSION_NAME", "").rpartition("/")[2][:200]
    except psutil.Error:
        return ""


_GONE = Whose(0.0, None, "", "")

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")

_START_FIELD = 19
"""Of /proc/PID/stat after the program's name, which may hold spaces: the start in clock ticks."""


class Owners:
    """Remember whose each process is, until the allocations or the process change."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        """Read control groups below `proc`."""
        self._proc = proc
        self._allocations: tuple[AgentAllocation, ...] = ()
        self._roots: dict[int, AgentAllocation] = {}
        self._by_name: dict[str, AgentAllocation] = {}
        self._by_group: dict[str, AgentAllocation] = {}
        self._accounts: dict[str, set[int]] = {}
        self._known: dict[int, Whose] = {}
        self._lifetimes = Lifetimes()
        self._ticks: dict[int, bytes | None] = {}
        """When each of these was started, as the kernel writes it."""
        self._last: dict[int, tuple[bytes, Whose]] = {}
        """Who had which number at the poll before, and the start that tells it from a later one."""
        self._looked_again = time.monotonic()

    def learn(self, allocations: Sequence[AgentAllocation]) -> None:
        """Take note of who holds devices now; what was known is forgotten when that changed."""
        if tuple(allocations) == self._allocations:
            return
        self._allocations = tuple(allocations)
        self._roots = {a.pid: a for a in allocations if a.pid is not None}
        # A worker's own name wins over its workload's, which stands for the first worker.
        self._by_name = {a.workload: a for a in reversed(allocations)}
        self._by_name |= {a.worker: a for a in allocations}
        self._by_group = {a.cgroup: a for a in allocations if a.cgroup}
        self._accounts = {}
        self._known = {}
        for pid in self._roots:
            # First, so that no stranger can claim to be of a workload that has a process.
            self.whose(pid)

    def retain(self, pids: AbstractSet[int]) -> None:
        """Forget all processes but these; at times also those that belonged to nobody.

        They may have become somebody's since.
        """
        self._last = {
            pid: (ticks, known)
            for pid, known in self._known.items()
            if pid in pids and (ticks := self._ticks.get(pid)) is not None
        }
        all_again = time.monotonic() - self._looked_again > LOOK_AGAIN_S
        if all_again:
            self._looked_again = time.monotonic()
        young = time.time() - YOUNG_S
        self._known = {
            pid: known
            for pid, known in self._known.items()
            if pid in pids and (known.owner or not (all_again or known.created > young))
        }
        self._ticks = {pid: ticks for pid, ticks in self._ticks.items() if pid in self._known}
        self._lifetimes.retain(pids)

    def is_stranger(self, pid: int) -> bool:
        """Tell whether it was found to belong to nobody, without looking again."""
        known = self._known.get(pid)
        return known is not None and known.owner is None

    def whose(self, pid: int) -> Whose:
        """Tell what is known of a process; of one that is gone what was known at the last poll.

        Once it is known this is one small call: it is asked each second of each process.
        """
        known = self._known.get(pid)
        if known is not None and pid in self._ticks and self._lifetimes.lasts(pid):
            return known
        self._lifetimes.hold(pid)
        ticks = _start_ticks(pid)
        if known is not None and ticks is not None and self._ticks.get(pid) == ticks:
            return known
        try:
            found = self._whose(psutil.Process(pid), MAX_ANCESTORS)
        except psutil.Error:
            # What it did until its end was its owner's; at the next poll it is nobody's.
            self._known.pop(pid, None)
            return self._last[pid][1] if pid in self._last else _GONE
        # Asked for before it was looked at: who came in between is looked at again.
        self._ticks[pid] = ticks
        return found

    def before(self, pid: int) -> tuple[Whose, float] | None:
        """Tell who had the number of this running process at the last poll, and until when.

        That is when the running one was started, in Unix seconds; None: it had it already.
        """
        before, ticks = self._last.get(pid), self._ticks.get(pid)
        if before is None or ticks is None or before[0] == ticks or pid not in self._known:
            return None
        # Not `create_time`: that adds a boot time in whole seconds.
        return before[1], _boot_time() + int(ticks) / _TICKS_A_SECOND

    def owner(self, process: psutil.Process) -> AgentAllocation | None:
        """Return the allocation that a process belongs to; None for other processes.

        Raises:
            psutil.Error: it is gone, or not ours to see.
        """
        return self._whose(process, MAX_ANCESTORS).owner

    def _whose(self, process: psutil.Process, depth: int) -> Whose:
        created = process.create_time()
        known = self._known.get(process.pid)
        if known is None or known.created != created:
            owner = self._find(process, created, depth)
            notebook = "" if owner is None else _notebook(process)
            known = Whose(created, owner, process.username(), process.name(), notebook)
            self._known[process.pid] = known
        return known

    def _find(self, process: psutil.Process, created: float, depth: int) -> AgentAllocation | None:
        root = self._roots.get(process.pid)
        if root is not None and (
            root.created is None or abs(root.created - created) < SAME_START_S
        ):
            return self._noted(root, process)
        if self._by_group and (owner := self._in_group(process.pid)) is not None:
            return self._noted(owner, process)
        if (owner := self._of_parent(process, created, depth)) is not None:
            return self._noted(owner, process)
        return self._by_environment(process)

    def _noted(self, owner: AgentAllocation, process: psutil.Process) -> AgentAllocation:
        self._accounts.setdefault(owner.workload, set()).add(process.uids().real)
        return owner

    def _in_group(self, pid: int) -> AgentAllocation | None:
        """Find it by its control group, which a process cannot leave by itself."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            path = line.split(":", 2)[-1]
            # The outermost is the cluster's; what is below, a container may name as it likes.
            if (pod := _POD.search(path)) is not None:
                uid = pod[1].replace("_", "-")
                if (owner := self._by_group.get(uid)) is not None:
                    return owner
            elif line.startswith("0::"):
                for group in (path, *map(str, Path(path).parents)):
                    if (owner := self._by_group.get(group)) is not None:
                        return owner
        return None

    def _of_parent(
        self, process: psutil.Process, created: float, depth: int
    ) -> AgentAllocation | None:
        if depth == 0:
            return None
        try:
            pid = process.ppid()
            if not pid:
                return None
            parent = self._whose(psutil.Process(pid), depth - 1)
        except psutil.Error:
            return None
        # A younger one was not its parent: that one ended, and the number was given again.
        return parent.owner if parent.created <= created else None

    def _by_environment(self, process: psutil.Process) -> AgentAllocation | None:
        try:
            environment = process.environ()
        except psutil.Error:
            return None
        claimed = self._by_name.get(environment.get("RUNAI_WORKER", "")) or self._by_name.get(
            environment.get("RUNAI_WORKLOAD", "")
        )
        if claimed is None or claimed.checkpoint_dir not in (
            "",
            environment.get("RUNAI_CHECKPOINT_DIR"),
        ):
            return None  # the second: of another installation, which has one of the same name
        # Anybody can write a name into an environment; only the workload's own accounts may.
        accounts = self._accounts.get(claimed.workload)
        return claimed if accounts is None or process.uids().real in accounts else None


def _boot_time() -> float:
    """Return when the machine was started, in Unix seconds, exact to microseconds."""
    # Who is interrupted between the two clocks sees the second one late.
    return min(-time.clock_gettime(time.CLOCK_BOOTTIME) + time.time() for _ in range(3))


def _start_ticks(pid: int) -> bytes | None:
    """Return when a process was started, in the kernel's own words; None where it does not tell."""
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
