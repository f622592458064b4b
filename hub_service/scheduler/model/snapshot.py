"""The world as one immutable picture, and what may be decided about it.

Knows the data types that the core takes (a `Snapshot`) and gives (a `Plan`), with the names that
they have on the wire. Knows no rules, and no JSON (`fields`). Built by clusters, the controller,
the simulator and tests; everything in here is frozen and compares by value.
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

Phase = Literal["allocate", "consolidate", "reclaim", "preempt", "stop_stale_gangs"]
Packing = Literal["binpack", "spread", "frag"]
Explain = Literal["short", "full", "none"]
WorkloadKind = Literal["job", "session"]

WaitCode = Literal[
    "over_build_quota",
    "over_limit",
    "over_share",
    "no_such_node",
    "no_room",
    "fragmented",
    "behind",
    "held_for",
    "protected",
    "gang_incomplete",
    "stopping",
    "unknown_project",
    "not_proven",
]
StopCode = Literal["reclaimed", "preempted", "shrunk", "grown", "consolidated", "stale_gang"]


class WorkerState(StrEnum):
    """What a worker does at the moment of the snapshot."""

    PENDING = "pending"
    RESERVED = "reserved"
    """Waits for the devices that the previous plan holds for it (R7)."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Was told to stop and still holds its devices."""


class LeftOut(Enum):
    """Stands for a quota that nobody gave: that of a parent is the sum of its children's (S3)."""

    SUM_OF_CHILDREN = "sum of children"
    """Nothing, for a project without children."""


Quota = MilliGpu | None | LeftOut
"""A guarantee in milli-GPU; None is unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator chose; the defaults are what we recommend."""

    phases: tuple[Phase, ...] = ("allocate", "reclaim", "preempt", "stop_stale_gangs")
    packing: Packing = "binpack"
    shrink_first: bool = True
    reservations: bool = True
    backfill: bool = False
    history_weight: Count = 0
    users_take_turns: bool = False
    max_evictions: Count | None = None
    max_pauses_per_hour: Count | None = None
    explain: Explain = "short"
    name_others: bool = True
    """Whether reasons name workloads and people of other projects, or only their project (X)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine and its devices, which are numbered from 0. None is "enough"."""

    name: Name
    devices: DeviceCount = 0
    device_memory_mib: Mib = Mib(0)
    gpu_type: str = ""
    cpu_milli: Count | None = None
    memory_mib: Mib | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    schedulable: bool = True
    broken_devices: tuple[Count, ...] = ()
    """Numbers of those that nothing new may be placed on; who is there stays (P5)."""

    @property
    def usable_devices(self) -> int:
        """Count the devices that are not broken."""
        return self.devices - len(self.broken_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTypes:
    """Values of the node label `runai/node-type` that a project may use; None is any (P5)."""

    build: tuple[Name, ...] | None = None
    train: tuple[Name, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Who owns quota. Amounts in milli-GPU, `min_runtime` in seconds."""

    name: Name
    parent: Name | None = None
    quota: Quota = LeftOut.SUM_OF_CHILDREN
    quota_by_type: Mapping[str, MilliGpu | None] | None = None
    """Stands in for `quota` where the guarantee is given by GPU type (Q4)."""
    build_quota: MilliGpu | None = None
    """None is the quota, which it never exceeds (Q1)."""
    limit: MilliGpu | None = None
    weight: Count | None = None
    """None is the quota in GPUs, or 1 where that is unlimited (S2)."""
    priority: int = 100
    created: int = 0
    min_runtime: Count = 0
    never_lent: MilliGpu = MilliGpu(0)
    node_types: NodeTypes = NodeTypes()
    usage: MilliGpu | None = None
    members: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process of a workload, and where it is. Amounts are per device wanted.

    Whole GPUs (`gpus` a multiple of 1000) go on as many devices; a fraction (`gpus` below 1000, or
    `gpu_memory_mib`) goes on each of `devices_wanted` distinct devices.
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
    """When a stopping worker is gone at the latest; None is not known."""
    cpu_milli: Count = 0
    memory_mib: Mib = Mib(0)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    gpu_types: tuple[Name, ...] = ()
    nodes: tuple[Name, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Anything that asks for GPUs: a session or a job with its workers. Times in seconds."""

    name: Name
    project: Name
    workers: tuple[Worker, ...]
    user: str = ""
    kind: WorkloadKind = "job"
    preemptible: bool | None = None
    """None is the kind's own: jobs are, sessions are not."""
    priority: int | None = None
    """None is the kind's own: 50 for a job, 100 for a session."""
    submitted: int = 0
    min_workers: Positive | None = None
    """None is all of them: a gang (P4)."""
    gpus_min: MilliGpu | None = None
    gpus_max: MilliGpu | None = None
    expected_runtime: Count | None = None
    pauses: tuple[int, ...] = ()
    below_min_since: int | None = None
    grace: Count = 60
    checkpointed: int | None = None
    throughput: Mapping[str, Count] = field(default_factory=dict)
    resize_cost: Count = 0
    pack_by: str = ""

    @property
    def is_preemptible(self) -> bool:
        """Tell whether it may be stopped for others: jobs may unless they say otherwise."""
        return self.kind == "job" if self.preemptible is None else self.preemptible

    @property
    def rank(self) -> int:
        """Give its priority inside its project; higher goes first."""
        if self.priority is None:
            return 50 if self.kind == "job" else 100
        return self.priority

    @property
    def minimum(self) -> int:
        """Give how many workers must run together."""
        return len(self.workers) if self.min_workers is None else self.min_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that a decision may depend on, at `now` (seconds)."""

    now: int = 0
    policy: Policy = Policy()
    nodes: tuple[Node, ...] = ()
    projects: tuple[Project, ...] = ()
    workloads: tuple[Workload, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A device of a node, and how much of it in milli-GPU."""

    device: Count
    gpus: MilliGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why: a stable code, the rule's letter, one sentence, and who gains by it."""

    code: WaitCode | StopCode
    rule: Name
    text: str
    for_: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a worker now: its devices are free."""

    kind: ClassVar[Literal["start"]] = "start"
    workload: Name
    worker: Name
    node: Name
    devices: tuple[DeviceShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Take a worker's devices back. A job is paused and queues again (R9)."""

    kind: ClassVar[Literal["stop"]] = "stop"
    workload: Name
    worker: Name
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Hold devices for a worker until those it waits for have left them (R7)."""

    kind: ClassVar[Literal["reserve"]] = "reserve"
    workload: Name
    worker: Name
    node: Name
    devices: tuple[DeviceShare, ...] = ()
    waits_for: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreserve:
    """Give up what an earlier plan held for a worker."""

    kind: ClassVar[Literal["unreserve"]] = "unreserve"
    workload: Name
    worker: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Pause a worker here and start it there, so that somebody else fits."""

    kind: ClassVar[Literal["move"]] = "move"
    workload: Name
    worker: Name
    node: Name
    devices: tuple[DeviceShare, ...]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Pause a worker and start it again on more or fewer devices of its node (E2)."""

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
    """Where somebody asked for it (`explain`), or the policy does (`explain: "full"`)."""


Decision = Start | Stop | Reserve | Unreserve | Move | Resize | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectShare:
    """A project after the plan, in milli-GPU; an unlimited quota is None."""

    quota: MilliGpu | None
    fair_share: MilliGpu
    allocated: MilliGpu
    over_quota: MilliGpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now, and how the projects stand after it."""

    decisions: tuple[Decision, ...] = ()
    projects: Mapping[str, ProjectShare] = field(default_factory=dict)


_AT_LEAST = 60  # seconds that a run counts for when it has only begun


class End(NamedTuple):
    """When something running is expected to end."""

    at: int
    is_estimated: bool


def end_of(workload: Workload, now: int, factor: tuple[int, int] = (1, 1)) -> End | None:
    """Tell when a running workload ends: as stated, or by how long it has run already.

    None where it does not run, or nobody knows since when.

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
    stated = workload.expected_runtime
    if stated is not None and elapsed < stated:
        return End(min(starts) + stated, is_estimated=False)
    more, per = factor
    return End(now + max(elapsed, _AT_LEAST) * more // per, is_estimated=True)
