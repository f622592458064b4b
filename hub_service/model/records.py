"""Domain records: what users requested (specs), and what exists now (records).

Plain frozen data with derived properties only. The API converts records to its wire schemas, the
cluster converts them to the scheduler's snapshot. Times are Unix seconds, GPUs milli-GPU, memory
MiB.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare
from runai.hub_service.wire.elastic_messages import Target, WorkerPhase
from runai.hub_service.wire.schemas import FINISHED

IDLE_BELOW = 0.01
"""A workload that keeps each device less busy is idle, whatever memory it holds."""


EXTENSION_S = 30 * 60
"""Seconds that "keep" adds, MAX_EXTENSIONS times at most in one idle stretch."""


MAX_EXTENSIONS = 2


NEVER_USED_S = 15 * 60
"""Seconds without any program on the GPU until it counts as never used.

It is released then, if the project releases idle GPUs.
"""


@dataclass(frozen=True, slots=True)
class IdleRules:
    """Seconds of idleness until each action; None is never."""

    badge_s: int | None = 5 * 60
    """Show it as idle."""
    notify_s: int | None = 20 * 60
    """Notify its owner."""
    release_s: int | None = None
    """Release its GPUs; the notebook server and its files stay. Sessions only."""
    stop_s: int | None = None
    """Stop it."""


FOR_SESSIONS = IdleRules()


FOR_JOBS = IdleRules(notify_s=None)


@dataclass(frozen=True, slots=True)
class TimeRules:
    """Time limits of a project's workloads of one kind, in seconds of running."""

    default_s: int | None = None
    """Limit of a workload that asks for none; None: `most_s`."""
    most_s: int | None = None
    """Longest limit that a workload may ask for; None: any."""
    warn_s: int = 10 * 60
    """Warn the owner so long before the end; of a short limit a tenth is enough."""


NO_TIME_LIMIT = TimeRules()


@dataclass(frozen=True, slots=True)
class ElasticRules:
    """Growth policy of elastic jobs; shrinking never waits."""

    grow_every_s: float = 30.0
    """Seconds after a start or resize in which a job does not grow."""
    resize_cost_s: int = 30
    """Seconds that a restart on other GPUs costs a single-process job (Pollux: 30 s)."""
    pays_from: float | None = 0.1
    """Part of the average speed per GPU at which one more pays; None: all pay."""


@dataclass(frozen=True, slots=True)
class ElasticState:
    """Elastic part of a job's record."""

    target: Target | None = None
    """Target of its workers; its `gen` grows over the job's whole life."""
    phases: Mapping[str, WorkerPhase] = field(default_factory=dict)
    """Phase of each worker since its start; empty: the job does not use the protocol."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """Unexpected exits of each worker while the rest went on."""
    throughput: Mapping[int, float] = field(default_factory=dict)
    """Samples per second of the whole job, by number of GPUs."""
    global_batch: int = 0
    """Samples of an update over all ranks; 0: not reported."""
    steps: int = 0
    """Micro-batches of an update on each rank, as it is now."""
    sized: float | None = None
    """Time of the scheduler's last change of its size."""
    resizes: int = 0
    """Number of resizes."""
    finishers: tuple[str, ...] = ()
    """Workers that had trained when the first rank finished: their exits decide the outcome."""
    saves: bool = False
    """True once a worker has reported: the job uses the protocol, and saves when it is stopped."""


SOURCE_PLACEHOLDER = "{source}"
"""Placeholder argument for the path of the file with the job's `source`."""

Ranges = tuple[tuple[int, int], ...]
"""Ascending half-open ranges of an array's indexes."""

WorkloadId = str
"""`project/name`: unique in the cluster and readable in sentences."""


def workload_id(project: str, name: str) -> WorkloadId:
    """Return the id of a workload in the scheduler, the API and the environment.

    >>> workload_id("vision", "exp-7")
    'vision/exp-7'
    """
    return f"{project}/{name}"


class WorkloadState(StrEnum):
    """State of a workload, as users see it.

    queued → starting → running → succeeded | failed | ended (a session) | timed_out
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
    TIMED_OUT = "timed_out"

    @property
    def finished(self) -> bool:
        """Return True if nothing will ever run again under this name."""
        return self in FINISHED


@dataclass(frozen=True, slots=True)
class Code:
    """Code of a job: the files that its command names, and its folder's commit."""

    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each, or why there is none."""
    commit: str = ""
    python: str = ""
    """Path of the Python that ran it; "": not known, or none."""

    def text(self) -> str:
        """Return files and commit in words.

        >>> Code({"train.py": "6a1f0c2b9d34" * 5}, "013d839d046ba107").text()
        'train.py 6a1f0c2b9d34, commit 013d839d046b'
        """
        parts = [f"{name} {digest[:SHORT]}" for name, digest in self.files.items()]
        return ", ".join([*parts, *([f"commit {self.commit[:SHORT]}"] if self.commit else [])])


SHORT = 12
"""Digits of a digest or commit in a sentence."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Validated request of a workload; an elastic job's number of workers may change.

    `command` is None for a session that a spawner starts; the cluster then only keeps its
    allocation. Exactly one of `gpus` (per worker) and `gpu_memory_mib` counts; both zero is a
    workload without a GPU. `env` is the user's own addition to the environment, with the variables
    `inherited` from the submission's.
    """

    project: str
    name: str
    user: str
    kind: Literal["job", "session"]
    command: tuple[str, ...] | None
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    inherited: tuple[str, ...] = ()
    gpus: MilliGpu = MilliGpu(0)
    gpu_memory_mib: int = 0
    cpu_milli: int = 0
    """Thousandths of a CPU requested by each worker; 0: none. `memory_mib` is the same."""
    cpu_asked: bool = False
    """True if its user named an amount of CPU; False if `cpu_milli` is a default, or none."""
    memory_mib: int = 0
    memory_asked: bool = False
    """True if its user named an amount of memory; False if `memory_mib` is a default, or none."""
    workers: int = 1
    min_workers: int = 1
    elastic: bool = False
    """`min_workers` to `workers` processes of one GPU each; or one of one GPU to `gpus_max`."""
    saves: bool = False
    """True if its user says that it saves its work when it is stopped, and goes on from there."""
    guaranteed_workers: int | None = None
    """Workers of an elastic job that are within the quota or wait, and that nobody else takes."""
    gpus_max: MilliGpu = MilliGpu(0)
    """Maximum of an elastic job of one process."""
    preemptible: bool = True
    priority: int = 50
    backoff_limit: int = 0
    grace_seconds: int = 30
    expected_runtime: int | None = None
    """Seconds from a start to the end, as its user expects it."""
    max_runtime: int | None = None
    """Seconds of running, over all attempts, after which it is stopped for good; None: no limit."""
    array: int | None = None
    """Number of elements of the job array that it is, or to which it belongs."""
    array_index: int | None = None
    """Index of an array's element; None: it is a whole array, or no part of one."""
    source: str = ""
    """Program text of a notebook cell, stored with the job."""
    server: str = ""
    """JupyterHub's server name of a session ("" is the default server)."""
    node_type: str = ""
    gpu_types: tuple[str, ...] = ()
    """Accepted device types, by their names on the nodes; (): any."""
    image: str = ""
    """Container image, on clusters with images; "" is the notebook's."""
    code: Code | None = None
    """The code that was submitted, as its user's client says; None: unknown."""
    umask: str = ""
    """Three octal digits; "": the usual one, or not known."""
    key: str = ""
    """Idempotency key of the submission: a repeat stores nothing."""

    @property
    def id(self) -> WorkloadId:
        """Return `project/name`."""
        return f"{self.project}/{self.name}"

    @property
    def is_array(self) -> bool:
        """Return True for a whole array."""
        return self.array is not None and self.array_index is None


@dataclass(frozen=True, slots=True)
class Process:
    """A process that outlives the service, identified beyond its PID, which may be reused."""

    pid: int
    created: float
    """Start in Unix seconds, as psutil.Process.create_time() returned it; clock changes shift it.
    """
    ticks: int | None = None
    """Start in clock ticks since boot, which clock changes do not affect."""
    boot: str = ""
    """The kernel's boot id."""


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker: its devices and its process."""

    name: str
    index: int
    state: Literal["pending", "reserved", "starting", "running", "stopping", "finished"]
    node: str = ""
    devices: tuple[DeviceShare, ...] = ()
    started: float | None = None
    process: Process | None = None
    attempt: int = 0
    """Attempt of the workload to which it belongs, from 1."""
    exit_code: int | None = None
    """Negative for a signal, as in subprocess; of the last attempt."""


@dataclass(frozen=True, slots=True)
class WorkerEnvironment:
    """Environment that gives a worker its devices. Never printed: it may hold secrets."""

    variables: Mapping[str, str] = field(repr=False)
    workdir: str = ""
    umask: str = ""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A worker that holds devices, with the process tree that uses them (for the agent)."""

    workload: WorkloadId
    worker: str
    project: str
    user: str
    shares: tuple[DeviceShare, ...]
    process: Process | None = None
    limits_mib: tuple[int | None, ...] = ()
    """Memory limit on each device; None: a whole device has none."""
    is_server: bool = False
    """True if the process is a notebook server."""
    cgroup: str = ""
    """Control group of its processes, if it has its own: a pod's UID."""
    checkpoint_dir: str = ""
    """Its checkpoint directory, which also identifies its processes by their environment."""


@dataclass(frozen=True, slots=True)
class StateReason:
    """Why a workload is in its state: the scheduler's reason, or an outcome."""

    code: str
    text: str
    rule: str = ""
    gains: str = ""
    """The workload that benefits from the decision (`for` in a plan)."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event of a workload: time, kind (a state or `warning`) and a sentence."""

    at: float
    kind: str
    text: str


_MOVED = "moved to "
"""Beginning of the scheduler's reason of a move."""


def move_of(stop: str) -> str:
    """Return the reason of a stop if it was a move; else ""."""
    return stop if stop.startswith(_MOVED) else ""


def last_move(history: Sequence[HistoryEvent]) -> str:
    """Return the last stop if it was a move, and how long it took if it is over; else ""."""
    stop = next((e for e in reversed(history) if e.kind == "stopping"), None)
    if stop is None or not move_of(stop.text):
        return ""
    later = history[history.index(stop) :]
    restart = next((e for e in later if e.kind == "running"), None)
    return stop.text if restart is None else f"{stop.text}, {restart.at - stop.at:.0f} s"


ACTIVE = ("starting", "running", "stopping")
"""States of a worker that has processes, or may have."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Devices of a node for one worker."""

    index: int
    node: str
    devices: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload as it is now: what was asked, its status, and its workers.

    All of it outlives a restart of the service, but for `states`.
    """

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
    ran_s: float = 0.0
    """Seconds of running before `runs_since`, pauses not counted; see `model.time_limits`."""
    runs_since: float | None = None
    """Time since which it runs; None: it does not, or is told to stop."""
    pauses: tuple[float, ...] = ()
    failures: int = 0
    exit_code: int | None = None
    checkpoint_dir: str = ""
    log_dir: str = ""
    not_before: float | None = None
    """Time at which a retry is due; None: when what it waits for outside of it is over."""
    released: float | None = None
    """Time since which a session runs without its idle GPUs; None: it was not released."""
    elastic: ElasticState | None = None
    """None: it is not elastic."""
    left: Ranges = ()
    """Indexes of an array's elements without a record of their own; this one stands for them."""
    states: Mapping[WorkloadState, int] = field(default_factory=dict)
    """Number of elements by state, of a whole array that was asked for by its name."""
    moved: str = ""
    """The reason of its last stop if that was a move, still after it runs again; else ""."""

    unsaved: bool = False
    """True if it rests since a pause that left nothing new in its checkpoint directory."""
    code: Code | None = None
    """The code of its last start; None: unknown."""
    killed: bool = False
    """True if its last stop killed processes of it at the end of its grace period."""
    uid: str = ""
    """Its identity: no later workload of this name has the same. Elements have their array's."""
    account_uid: int | None = None
    """Unix uid of its user at the submission; None: workers run as the platform's account."""

    intent: Literal["run", "suspend", "delete"] = "run"
    halt: Literal["", "paused", "failed", "lost", "done", "timed_out", "aside"] = ""
    """Why the whole workload is stopping; "": it is not."""
    resumed: bool = False
    """True if a program of it ran, or may have run: its next start may find a checkpoint."""
    losses: int = 0
    granted: float | None = None
    stopping_since: float | None = None
    below_min_since: float | None = None
    master_port: int = 0
    resize: Grant | None = None
    """Devices on which a stopping elastic worker restarts (E2)."""
    unexamined: tuple[tuple[int, int], ...] | None = None
    """Index and attempt of each worker that the last pause stopped, until it is known whether they
    left checkpoints; None: no pause was ever examined."""
    code_due: int = 0
    """Attempt whose code at the start is not noted yet; 0: none."""
    scale: tuple[int, int] | None = None
    """Maximum and minimum of workers, if changed since the submission.

    The spec has them too, but is stored only once.
    """

    @property
    def active(self) -> tuple[WorkerRecord, ...]:
        """Return the workers with processes, or possibly with some."""
        return tuple(w for w in self.workers if w.state in ACTIVE)

    @property
    def saves(self) -> bool:
        """Return True if it is known to save its work when it is stopped (R4, R10)."""
        return self.spec.saves or (self.elastic is not None and self.elastic.saves)

    @property
    def is_set_aside(self) -> bool:
        """Return True if a job waits for something outside of it: no time of a retry is known."""
        return self.state is WorkloadState.RETRYING and self.not_before is None

    @property
    def size(self) -> int:
        """Return the number of workloads that it stands for."""
        return sum(end - begin for begin, end in self.left) if self.spec.is_array else 1

    @property
    def id(self) -> WorkloadId:
        """Return `project/name`."""
        spec = self.spec  # read for tens of thousands in a row: one attribute access
        return f"{spec.project}/{spec.name}"

    @property
    def has_devices(self) -> bool:
        """Return True if it holds any device; faster than `allocated` for thousands that wait."""
        for worker in self.workers:  # noqa: SIM110  twice as quick as any()
            if worker.devices:
                return True
        return False

    @property
    def allocated(self) -> MilliGpu:
        """Return the GPUs it holds: running, starting, stopping and reserved."""
        return MilliGpu(sum(share.gpus for w in self.workers for share in w.devices))


def killed_text(spec: WorkloadSpec) -> str:
    """Return how a stop ended that killed processes of a workload."""
    grace = f"its grace of {spec.grace_seconds} s"
    return f"killed after {grace}: its save may be cut; `--grace` gives more"


def unsaved_text(record: WorkloadRecord) -> str:
    """Return the warning after a pause that left nothing new in the checkpoint directory."""
    word = "suspended" if record.state is WorkloadState.SUSPENDED else "paused"
    return (
        f"{word}; nothing new in its checkpoint directory: "
        "unless it saves elsewhere, it starts where it began"
    )


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """A project's settings, as its admins set them (`projects.yaml`, `runai project set`).

    `quota` and `limit` None mean unlimited; `build_quota` and `weight` None mean "as the quota".
    With `quota_by_type`, `quota` is its sum.
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
    time_session: TimeRules = NO_TIME_LIMIT
    time_job: TimeRules = NO_TIME_LIMIT
    quota_by_type: Mapping[str, MilliGpu | None] | None = None
    umask: str = ""
    """Of workloads that run as their users' Unix accounts; "": none is set."""


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A project with its creation time (the scheduler breaks ties by age)."""

    spec: ProjectSpec
    created: float
