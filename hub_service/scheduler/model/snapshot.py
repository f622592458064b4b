"""Input and output of the scheduler: an immutable `Snapshot` and a `Plan`.

Field names are the same as in the JSON interface. All types are frozen and compare by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import ClassVar, Literal, NamedTuple

from runai.hub_service.scheduler.model.explanation import Explanation
from runai.hub_service.scheduler.model.quantity import (
    Count,
    DeviceCount,
    Mib,
    MilliGpu,
    Name,
    Positive,
    PositiveMib,
    WorkerGpus,
)

PolicyPhase = Literal["allocate", "consolidate", "reclaim", "preempt", "stop_stale_gangs"]
Packing = Literal["binpack", "spread", "frag"]
MovePolicy = Literal["all", "saves"]
ExplanationLevel = Literal["short", "full", "none"]
WorkloadKind = Literal["job", "session"]

WaitCode = Literal[
    "over_build_quota",
    "over_limit",
    "over_share",
    "no_such_node",
    "lost_devices",
    "no_room",
    "fragmented",
    "behind",
    "held_for",
    "protected",
    "gang_incomplete",
    "stopping",
    "unknown_project",
    "not_a_member",
    "not_proven",
]
StopCode = Literal["reclaimed", "preempted", "shrunk", "grown", "consolidated", "stale_gang"]


class WorkerState(StrEnum):
    """State of a worker at the time of the snapshot."""

    PENDING = "pending"
    RESERVED = "reserved"
    """Waits for devices that the previous plan reserved for it (R7)."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Received a stop decision, and still occupies its devices."""


class LeftOut(Enum):
    """Marker of an absent quota: a parent's is then the sum of its children's (S3)."""

    SUM_OF_CHILDREN = "sum of children"
    """Zero for a project without children."""


Quota = MilliGpu | None | LeftOut
"""A guarantee in milli-GPU; None is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the operator; the defaults are the recommended values."""

    phases: tuple[PolicyPhase, ...] = ("allocate", "reclaim", "preempt", "stop_stale_gangs")
    packing: Packing = "binpack"
    shrink_first: bool = True
    reservations: bool = True
    backfill: bool = False
    history_weight: Count = 0
    users_take_turns: bool = False
    max_evictions: Count | None = None
    max_pauses_per_hour: Count | None = None
    quota_moves: bool = True
    """True if a claim within its quota may move preemptible jobs that lie badly (R10)."""
    moves: MovePolicy = "all"
    """Jobs that `consolidate` may move: all, or only jobs that save their work (R10)."""
    max_moves_per_hour: Count | None = None
    """Stops and moves of a job in an hour after which `consolidate` moves it no more."""
    max_moves: Count | None = None
    """Workloads that one plan moves by `consolidate`."""
    explain: ExplanationLevel = "short"
    name_others: bool = True
    """True if reasons name workloads and users of other projects, not only the project (X)."""


SHIPPED = Policy(
    phases=(*Policy().phases, "consolidate"), moves="saves", max_moves_per_hour=2, max_moves=4
)
"""The policy that the platform is shipped with: jobs that save move to make room (R10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node and its devices, numbered from 0. None is unlimited CPU or memory."""

    name: Name
    devices: DeviceCount = 0
    device_memory_mib: Mib = Mib(0)
    gpu_type: str = ""
    cpu_milli: Count | None = None
    memory_mib: Mib | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    schedulable: bool = True
    broken_devices: tuple[Count, ...] = ()
    """Devices closed for new workers; workers already there continue (P5)."""
    returning_devices: tuple[Count, ...] = ()
    """Broken devices that may work again in a moment: reservations of them stand (R7)."""
    loss: str = ""
    """Why it offers fewer devices than it has, as a clause for reasons; "" if it offers all."""

    @property
    def usable_devices(self) -> int:
        """Return the number of devices that are not broken."""
        return self.devices - len(self.broken_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTypes:
    """Values of the node label `runai/node-type` that a project may use. None is any (P5)."""

    build: tuple[Name, ...] | None = None
    train: tuple[Name, ...] | None = None


MAX_LEVELS = 20
"""Projects from a root to its deepest descendant; the core descends by recursion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """An owner of quota. Amounts in milli-GPU, `min_runtime` in seconds."""

    name: Name
    parent: Name | None = None
    quota: Quota = LeftOut.SUM_OF_CHILDREN
    quota_by_type: Mapping[str, MilliGpu | None] | None = None
    """Guarantee per GPU type; replaces `quota` if set (Q4)."""
    build_quota: MilliGpu | None = None
    """None means the quota, which the build quota never exceeds (Q1)."""
    limit: MilliGpu | None = None
    weight: Count | None = None
    """None means the quota in GPUs, or 1 if the quota is unlimited (S2)."""
    priority: int = 100
    created: int = 0
    min_runtime: Count = 0
    never_lent: MilliGpu = MilliGpu(0)
    node_types: NodeTypes = NodeTypes()
    usage: MilliGpu | None = None
    members: tuple[Name, ...] = ()
    former_members: tuple[Name, ...] = ()
    """Former members: their running workers go on; their workloads do not start or grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process of a workload, and its place. Amounts are per wanted device.

    Whole GPUs (`gpus` is a multiple of 1000) occupy as many devices. A fraction (`gpus` below 1000,
    or `gpu_memory_mib`) occupies a part of each of `devices_wanted` distinct devices.
    """

    name: Name
    gpus: WorkerGpus = MilliGpu(0)
    gpu_memory_mib: PositiveMib | None = None
    devices_wanted: Positive = 1
    state: WorkerState = WorkerState.PENDING
    node: Name | None = None
    devices: tuple[Count, ...] = ()
    started: int | None = None
    gone_by: int | None = None
    """Latest time at which a stopping worker is gone; None is unknown."""
    cpu_milli: Count = 0
    memory_mib: Mib = Mib(0)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    gpu_types: tuple[Name, ...] = ()
    """Allowed GPU types in order of preference; empty means any (P5)."""
    nodes: tuple[Name, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A session or a job with its workers. Times in seconds."""

    name: Name
    project: Name
    workers: tuple[Worker, ...]
    user: str = ""
    kind: WorkloadKind = "job"
    preemptible: bool | None = None
    """None means the default of the kind: True for jobs, False for sessions."""
    priority: int | None = None
    """None means the default of the kind: 50 for jobs, 100 for sessions."""
    submitted: int = 0
    min_workers: Positive | None = None
    """None means all workers: a gang (P4)."""
    guaranteed_workers: Count | None = None
    """Workers that are within the quota or wait, and that no other project takes (E4)."""
    gpus_min: MilliGpu | None = None
    gpus_max: MilliGpu | None = None
    expected_runtime: Count | None = None
    max_runtime: Count | None = None
    """Time after which it is stopped whatever it does, in seconds of running; None is no bound."""
    pauses: tuple[int, ...] = ()
    below_min_since: int | None = None
    grace: Count = 60
    checkpointed: int | None = None
    saves: bool = False
    """True if it is known to save its work when it is stopped: a pause loses nothing (R4, R10)."""
    throughput: Mapping[str, Count] = field(default_factory=dict)
    resize_cost: Count = 0
    pack_by: str = ""
    array_index: Count | None = None
    """Index of an array's element, at the end of its name; None: it is no element."""

    @property
    def age(self) -> tuple[int, str]:
        """Return its sort key among equals: submission, then name, of elements by their index."""
        if self.array_index is None:
            return self.submitted, self.name
        array = self.name.rpartition("-")[0]
        return self.submitted, f"{array}-{self.array_index:09d} {self.name}"

    @property
    def is_preemptible(self) -> bool:
        """Return True if it may be stopped for other workloads: by default only jobs."""
        return self.kind == "job" if self.preemptible is None else self.preemptible

    @property
    def rank(self) -> int:
        """Return its priority in its project; higher goes first."""
        if self.priority is None:
            return 50 if self.kind == "job" else 100
        return self.priority

    @property
    def minimum(self) -> int:
        """Return the number of workers that must run together."""
        return len(self.workers) if self.min_workers is None else self.min_workers

    @property
    def guaranteed(self) -> int:
        """Return the number of guaranteed workers: 0, or at least the minimum (E4)."""
        return max(self.minimum, self.guaranteed_workers) if self.guaranteed_workers else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Complete input of one scheduling decision, at `now` (seconds)."""

    now: int = 0
    policy: Policy = Policy()
    nodes: tuple[Node, ...] = ()
    projects: tuple[Project, ...] = ()
    workloads: tuple[Workload, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A device of a node, and the allocated part of it in milli-GPU."""

    device: Count
    gpus: MilliGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Stable code, letter of the rule, one sentence, and the workload that benefits."""

    code: WaitCode | StopCode
    rule: Name
    text: str
    for_: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a worker now, on free devices."""

    kind: ClassVar[Literal["start"]] = "start"
    workload: Name
    worker: Name
    node: Name
    devices: tuple[DeviceShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop a worker and release its devices. A job is paused and queues again (R9)."""

    kind: ClassVar[Literal["stop"]] = "stop"
    workload: Name
    worker: Name
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Reserve devices for a worker until the workers in `waits_for` have left them (R7)."""

    kind: ClassVar[Literal["reserve"]] = "reserve"
    workload: Name
    worker: Name
    node: Name
    devices: tuple[DeviceShare, ...] = ()
    waits_for: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreserve:
    """Release what an earlier plan reserved for a worker."""

    kind: ClassVar[Literal["unreserve"]] = "unreserve"
    workload: Name
    worker: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Pause a worker and restart it elsewhere, so that another workload fits."""

    kind: ClassVar[Literal["move"]] = "move"
    workload: Name
    worker: Name
    node: Name
    devices: tuple[DeviceShare, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Pause a worker and restart it on more or fewer devices of its node (E2)."""

    kind: ClassVar[Literal["resize"]] = "resize"
    workload: Name
    worker: Name
    node: Name
    devices: tuple[DeviceShare, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Leave a workload in the queue; `position` counts from 1 in its project's queue."""

    kind: ClassVar[Literal["wait"]] = "wait"
    workload: Name
    reason: Reason
    position: Count
    explanation: Explanation | None = None
    """Present if the caller passes `explain`, or the policy has `explain: "full"`."""


Decision = Start | Stop | Reserve | Unreserve | Move | Resize | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectShare:
    """Share of a project after the plan, in milli-GPU; None is an unlimited quota."""

    quota: MilliGpu | None
    fair_share: MilliGpu
    allocated: MilliGpu
    over_quota: MilliGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Decisions to carry out now, and the projects' shares after them."""

    decisions: tuple[Decision, ...] = ()
    projects: Mapping[str, ProjectShare] = field(default_factory=dict)


_MIN_ELAPSED_S = 60  # minimum elapsed time in estimates, for runs that have just begun


class End(NamedTuple):
    """Expected end of a running workload."""

    at: int
    is_estimated: bool


def end_of(workload: Workload, now: int, factor: tuple[int, int] = (1, 1)) -> End | None:
    """Return the end of a running workload: as stated, or estimated from its elapsed time.

    `factor` times the elapsed time is the estimate of the rest. None if it does not run, or its
    start is unknown.

    >>> from runai.hub_service.scheduler.model.snapshot import Worker, WorkerState, Workload
    >>> run = Worker(name="w", state=WorkerState.RUNNING, started=700)
    >>> end_of(Workload(name="x", project="a", workers=(run,)), now=1000)
    End(at=1300, is_estimated=True)
    """
    starts = [
        worker.started
        for worker in workload.workers
        if worker.state is WorkerState.RUNNING and worker.started is not None
    ]
    if not starts:
        return None
    elapsed = now - min(starts)
    runtime, is_estimated = workload.expected_runtime, False
    if runtime is None or elapsed >= runtime:
        numerator, denominator = factor
        rest = max(elapsed, _MIN_ELAPSED_S) * numerator // denominator
        runtime, is_estimated = elapsed + rest, True
    if workload.max_runtime is not None:
        runtime = min(runtime, max(elapsed, workload.max_runtime))
    return End(min(starts) + runtime, is_estimated)
