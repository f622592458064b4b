"""The facts a cluster keeps: what was asked (specs) and what is (records).

Plain frozen data without behaviour beyond derived properties. The API turns records into its wire
schemas; the cluster turns them into the core's snapshot. Times are Unix seconds, GPUs milli-GPU,
memory MiB.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare
from runai.hub_service.wire.elastic_messages import Target, WorkerPhase

IDLE_BELOW = 0.01
"""A workload that keeps less of every device busy is idle, whatever memory it holds."""


KEEP_S = 30 * 60
"""What "keep" adds to the time, and how often it may be asked for in one idle stretch."""


KEEPS = 2


NEVER_USED_S = 15 * 60
"""After so long without any program on the GPU it was never used: where a project releases."""


@dataclass(frozen=True, slots=True)
class IdleRules:
    """After how many seconds of idleness what happens; None is never."""

    badge_s: int | None = 5 * 60
    """It is shown as idle."""
    notify_s: int | None = 20 * 60
    """Its owner is told."""
    release_s: int | None = None
    """Its GPUs go to others; the notebook server and its files stay. Sessions only."""
    stop_s: int | None = None
    """It is stopped."""


FOR_SESSIONS = IdleRules()


FOR_JOBS = IdleRules(notify_s=None)


@dataclass(frozen=True, slots=True)
class ElasticRules:
    """How eagerly a cluster grows elastic jobs; shrinking never waits."""

    grow_every_s: float = 30.0
    """A job that has just started, grown or shrunk is left alone so long."""
    resize_cost_s: int = 30
    """What it costs a job of one process to be started again on other GPUs (Pollux: 30 s)."""
    pays_from: float | None = 0.1
    """A GPU that adds less than this part of what each of the others gives is not worth having.
    None: every one is."""


@dataclass(frozen=True, slots=True)
class ElasticState:
    """An elastic job's own part of its record."""

    target: Target | None = None
    """What its workers are told; its `gen` grows over the job's whole life."""
    phases: Mapping[str, WorkerPhase] = field(default_factory=dict)
    """What each worker told since its start; empty: nobody speaks the protocol."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """How often each worker ended unexpectedly while the others went on."""
    throughput: Mapping[int, float] = field(default_factory=dict)
    """Samples per second of the whole job, by how many GPUs it was measured with."""
    global_batch: int = 0
    """Samples of an update over all ranks; 0: nobody told."""
    steps: int = 0
    """Micro-batches of an update on each rank, as it is now."""
    sized: float | None = None
    """When the scheduler last changed its size."""
    resizes: int = 0
    """How often it went on with more or fewer GPUs."""
    finishers: tuple[str, ...] = ()
    """Who had trained when the first of its ranks finished: their ends say how the job did."""


SOURCE_PLACEHOLDER = "{source}"
"""An argument for which the cluster puts the path of the file with the job's `source`."""

WorkloadId = str
"""`project/name`: unique in the cluster and readable in sentences."""


def workload_id(project: str, name: str) -> WorkloadId:
    """Return the id under which the core, the API and the environment know a workload.

    >>> workload_id("vision", "exp-7")
    'vision/exp-7'
    """
    return f"{project}/{name}"


class WorkloadState(StrEnum):
    """What a user is told a workload does right now.

    queued → starting → running → succeeded | failed | ended (a session)
    running → stopping → paused (by the scheduler; waits in its old place) → starting → …
    running → stopping → suspended (by its user; out of the queue) → queued | paused → …
    running → retrying (failed, waits for its back-off) → queued → …
    """

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"

    @property
    def finished(self) -> bool:
        """Tell whether nothing will ever run again under this name."""
        return self in (WorkloadState.SUCCEEDED, WorkloadState.FAILED, WorkloadState.ENDED)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What was asked for, already validated; of an elastic job, its number of workers may change.

    `command` is None for a session whose process somebody else starts (the spawner); the cluster
    then only keeps its allocation. Exactly one of `gpus` (per worker) and `gpu_memory_mib` counts;
    both zero is a workload without a GPU. `env` is the user's own addition to the environment.
    """

    project: str
    name: str
    user: str
    kind: Literal["job", "session"]
    command: tuple[str, ...] | None
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    gpus: MilliGpu = MilliGpu(0)
    gpu_memory_mib: int = 0
    workers: int = 1
    min_workers: int = 1
    elastic: bool = False
    """`min_workers` to `workers` processes of one GPU each; or one of one GPU to `gpus_max`."""
    gpus_max: MilliGpu = MilliGpu(0)
    """Of an elastic job of one process."""
    preemptible: bool = True
    priority: int = 50
    backoff_limit: int = 0
    grace_seconds: int = 30
    expected_runtime: int | None = None
    """Seconds from a start to the end, as its user expects it."""
    array_index: int | None = None
    source: str = ""
    """The program text of a notebook cell, kept with the job."""
    server: str = ""
    """JupyterHub's server name of a session ("" is the default server)."""
    node_type: str = ""
    gpu_types: tuple[str, ...] = ()
    """It runs on devices of one of these types, as their nodes call them; (): of any."""
    image: str = ""
    """The container image that it runs in, where there are any; "" is the notebook's."""
    key: str = ""
    """What its client called this submission, so that a repeat of it is known as one."""

    @property
    def id(self) -> WorkloadId:
        """Return `project/name`."""
        return f"{self.project}/{self.name}"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that outlives us, named so that a reused PID is not mistaken for it."""

    pid: int
    created: float
    """Its start in Unix seconds, as psutil.Process.create_time() gave it: the clock moves it."""
    ticks: int | None = None
    """Its start in clock ticks since the machine was booted, which nothing moves."""
    boot: str = ""
    """Which boot: the kernel's id of it."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker: what it holds and the process that runs it."""

    name: str
    index: int
    state: Literal["pending", "reserved", "starting", "running", "stopping", "finished"]
    node: str = ""
    devices: tuple[DeviceShare, ...] = ()
    started: float | None = None
    process: Process | None = None
    attempt: int = 0
    """The start of the workload to which it belongs, from 1."""
    exit_code: int | None = None
    """Negative for a signal, as in subprocess; of the last attempt."""


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """What hands a worker its devices, and where it starts. Never printed: it may hold secrets."""

    variables: Mapping[str, str] = field(repr=False)
    workdir: str = ""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A worker that holds devices, and the process whose tree uses them (what the agent needs)."""

    workload: WorkloadId
    worker: str
    project: str
    user: str
    shares: tuple[DeviceShare, ...]
    process: Process | None = None
    limits_mib: tuple[int | None, ...] = ()
    """What it may use of each of them; None: a whole device has no limit."""
    is_server: bool = False
    """Whether the process is a notebook server."""
    cgroup: str = ""
    """The control group of its processes, if they have one of their own: a pod's UID."""
    checkpoint_dir: str = ""
    """Where its checkpoints stand; in its environment it tells it from its like elsewhere."""


@dataclass(frozen=True, slots=True)
class StateReason:
    """Why a workload is in its state: the core's reason for a wait or stop, or an outcome."""

    code: str
    text: str
    rule: str = ""
    gains: str = ""
    """The workload in whose favour it was decided (`for` in a plan)."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One line of a workload's life: when, what kind (a state or `warning`) and a sentence."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload as the cluster knows it now."""

    spec: WorkloadSpec
    state: WorkloadState
    submitted: float
    workers: tuple[WorkerRecord, ...]
    reason: StateReason | None = None
    """Why it waits, was stopped or failed: the last decision or outcome."""
    position: int | None = None
    started: float | None = None
    """First start; `attempts` counts starts, `pauses` stops by the scheduler, `failures` errors."""
    finished: float | None = None
    attempts: int = 0
    pauses: tuple[float, ...] = ()
    failures: int = 0
    exit_code: int | None = None
    checkpoint_dir: str = ""
    log_dir: str = ""
    not_before: float | None = None
    """When a retry is due."""
    released: float | None = None
    """Since when a session goes on without its GPUs, which were idle; None: it has what it got."""
    elastic: ElasticState | None = None
    """None: it is not elastic."""

    @property
    def id(self) -> WorkloadId:
        """Return `project/name`."""
        spec = self.spec  # asked of tens of thousands in a row: no call more than needed
        return f"{spec.project}/{spec.name}"

    @property
    def holds_devices(self) -> bool:
        """Tell whether it holds any device; quicker than what, of thousands that wait."""
        for worker in self.workers:  # noqa: SIM110  twice as quick as any()
            if worker.devices:
                return True
        return False

    @property
    def allocated(self) -> MilliGpu:
        """Return the GPUs it holds: running, starting, stopping and reserved."""
        return MilliGpu(sum(share.gpus for w in self.workers for share in w.devices))


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """A project as its admins set it (`projects.yaml`, `runai project set`).

    `quota` and `limit` None mean unlimited; `build_quota` and `weight` None mean "as the quota".
    """

    name: str
    parent: str | None = None
    quota: MilliGpu | None = MilliGpu(0)
    build_quota: MilliGpu | None = None
    limit: MilliGpu | None = None
    weight: int | None = None
    priority: int = 100
    never_lent: MilliGpu = MilliGpu(0)
    min_runtime: int = 0
    node_types_build: tuple[str, ...] | None = None
    node_types_train: tuple[str, ...] | None = None
    members: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    admin_groups: tuple[str, ...] = ()
    idle_session: IdleRules = FOR_SESSIONS
    idle_job: IdleRules = FOR_JOBS


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A project and when it was created (the core breaks ties by age)."""

    spec: ProjectSpec
    created: float
