"""The wire contract: what goes over HTTP between the service and its clients.

Requests are validated here, at the border: what is typed by a user becomes a type or one sentence.
GPUs on the wire are decimal numbers (0.5), memory is in MiB, times are RFC 3339 in UTC.
Unknown fields are errors. Known by `client` and `api` only; the cluster speaks `clusters.records`.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from runai.hub_service.wire.amounts import (
    LONGEST_S,
    MOST_MEMORY_MIB,
    MOST_WORKERS,
    Seconds,
    Text,
    seconds,
)
from runai.hub_service.wire.base_schema import (
    Argument,
    EnvName,
    Gpus,
    ImageName,
    Line,
    Path,
    PositiveInt,
    ProjectName,
    UserName,
    Wire,
    WorkloadName,
)
from runai.hub_service.wire.device_schemas import NodeView


class ExpectedStartView(Wire):
    """When it starts if nothing else is submitted; None: nobody can tell."""

    at: datetime | None
    earliest: datetime | None
    latest: datetime | None
    is_estimated: bool
    """Whether it rests on run times that nobody stated: then the bounds hold every other time."""
    text: str


class ProgressView(Wire):
    """How far a job is, as it reports by `runai.reporter`."""

    done: float | None = None
    """Its epochs that are done, 0..1; None: it told no epochs."""
    text: str
    """ "3 of 10 epochs · loss 0.0123 · accuracy 0.98"; to who may not read it its epochs alone."""


class MetricsView(Wire):
    """All that a job reports of itself."""

    metrics: dict[str, float | None]
    """None: it is not a finite number."""
    parameters: dict[str, str]
    text: str
    """ "loss 0.0123, accuracy 0.98, optimizer_name Adam"."""


class NotificationView(Wire):
    """What happened to a workload of the caller's."""

    at: datetime
    kind: Literal["paused", "resumed", "failed", "idle"]
    workload: str
    text: str


class LimitView(Wire):
    """What a workload may use of each device that it shares, and how strictly that is kept."""

    memory_mib: int
    """Of several devices the smallest."""
    tier: Literal["frameworks", "mps", "driver"]
    badge: str
    """`hard limit` or `soft limit`."""
    why: str
    """What that means, in one sentence."""


class ProcessView(Wire):
    """A process of a workload on a device."""

    pid: int
    """As its node counts."""
    worker: str
    device: str
    """UUID."""
    name: str
    """Its notebook if it is a kernel, else its program; never its arguments."""
    utilized: float | None
    memory_mib: int | None


_Bounded = Annotated[int, Field(ge=60, le=30 * 86400)]


IdleSeconds = Annotated[_Bounded, BeforeValidator(seconds, json_schema_input_type=_Bounded | Text)]


class IdlePut(Wire):
    """What happens after so many seconds without using the GPUs; null is never."""

    badge_s: IdleSeconds | None = 300
    notify_s: IdleSeconds | None = 1200
    release_s: IdleSeconds | None = None
    """Sessions only: they go on without their GPUs."""
    stop_s: IdleSeconds | None = None


class IdleView(Wire):
    """How idle a workload's GPUs are, and what comes of it."""

    since: datetime
    """Measured idle time before now; gaps in measuring left out."""
    text: str
    """For its owner: how long, and what comes of it when."""
    told: bool = False
    """Whether its owner has been told in its history."""
    takes: Literal["release", "stop"] | None = None
    """What its project does if it stays idle; None: nothing."""
    takes_at: datetime | None = None
    keeps_left: int = 0
    """How often it can still be kept for 30 more minutes."""
    kept: bool = False
    """Whether its owner asked for more time since it is idle."""
    releasing: bool = False
    """Whether its programs are being ended so that its GPUs can go to others."""
    releasable: bool = False
    """Whether its owner may give its GPUs back while it goes on."""


class SpeedView(Wire):
    """How fast a job was with so many GPUs."""

    gpus: int
    samples_per_s: float


class ElasticView(Wire):
    """An elastic job's size in GPUs, now and at the bounds, and what is known of its speed."""

    workers: int = 1
    """Processes at most; one, which uses several GPUs, stays one."""
    least: int
    training: int
    """GPUs of those that train now."""
    most: int
    joining: int = 0
    """GPUs of workers that have started and are not ready yet."""
    resizes: int = 0
    global_batch: int | None = None
    """Samples of an update, whatever its size."""
    steps: int | None = None
    """Micro-batches of an update on each GPU now."""
    speeds: tuple[SpeedView, ...] = ()
    text: str
    """ "2 of 1 to 4 GPUs, 1 joining; 256 samples an update in 2 steps"."""
    speed: str = ""
    """ "100 samples/s on 1 GPU, 190 on 2"."""


MOST_PROGRAM_BYTES = 2**20
"""Of a command and its environment: Linux takes twice as much."""

# -- workloads -----------------------------------------------------------------------------------


class SubmitRequest(Wire):
    """Ask for a job, or (the spawner, `--interactive`) a session.

    Without `project`: the caller's only one, or their default, else an error naming them.
    Without `gpus` and `gpu_memory_mib`: no GPU. `owner` and `server` are the spawner's alone.
    """

    name: WorkloadName | None = None
    """None: the service picks `<job|session>-<n>`."""
    project: ProjectName | None = None
    kind: Literal["job", "session"] = "job"
    command: Annotated[list[Argument], Field(min_length=1, max_length=10_000)] | None = None
    """The program and its arguments; None only for a session that the spawner starts."""
    workdir: Path = ""
    env: Annotated[dict[EnvName, Argument], Field(max_length=1000)] = {}
    gpus: Gpus | None = None
    gpu_memory_mib: Annotated[int, Field(ge=1, le=MOST_MEMORY_MIB)] | None = None
    gpu_type: Line | None = None
    """Words of the type's name, such as A100, or all of it; None: any."""
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] = 1
    min_workers: PositiveInt | None = None
    """None: all of them (a gang), or 1 of an elastic job."""
    elastic: bool = False
    """As many GPUs as there are for it, changed while it runs (docs/elastic.md)."""
    array: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None
    priority: Literal["low", "normal", "high"] | Annotated[int, Field(ge=0, le=1000)] = "normal"
    preemptible: bool | None = None
    """None: a job is, a session is not."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 0
    grace_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    expected_runtime: Seconds | None = None
    """From a start to the end, as its user expects it: seconds, or text such as 2h."""
    source: Annotated[str, StringConstraints(max_length=1_000_000)] = ""
    image: ImageName | None = None
    owner: UserName | None = None
    server: Line = ""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Refuse what would fill the platform's memory, or could not be handed to a program."""
        if self.workers * (self.array or 1) > MOST_WORKERS:
            raise ValueError(f"ask for at most {MOST_WORKERS} workers at once")
        words = [*(self.command or ()), *self.env, *self.env.values()]
        if sum(len(word.encode()) for word in words) > MOST_PROGRAM_BYTES:
            raise ValueError("command and env may have 1 MiB together: put the rest into a file")
        return self


class ScaleRequest(Wire):
    """Let an elastic job have so many workers, at most and at least; None: as before."""

    workers: Annotated[int, Field(ge=2, le=MOST_WORKERS)] | None = None
    min_workers: PositiveInt | None = None


class ReasonView(Wire):
    """Why something waits or was stopped: a stable code, the rule's letter, a sentence."""

    code: str
    rule: str = ""
    text: str
    gains: str = ""
    """The workload in whose favour it was decided, if any (`for` in a plan)."""
    position: int | None = None


class DeviceShareView(Wire):
    """A share of one device."""

    device: int
    uuid: str
    gpus: float


class WorkerView(Wire):
    """One worker of a workload."""

    name: str
    index: int
    state: str
    node: str = ""
    devices: list[DeviceShareView] = []
    started: datetime | None = None
    exit_code: int | None = None


WorkloadStateName = Literal[
    "queued", "starting", "running", "stopping", "paused", "suspended", "retrying",
    "succeeded", "failed", "ended",
]  # fmt: skip


class WorkloadView(Wire):
    """A workload in a list: whose, what it asks and holds, how busy it is, why it waits."""

    id: str
    project: str
    name: str
    user: str
    kind: Literal["job", "session"]
    server: str = ""
    """JupyterHub's name of a session's server; "" is the default one, and a job's."""
    state: WorkloadStateName
    preemptible: bool
    priority: int
    gpus: float
    """GPUs asked for by all workers together (memory as its part of a device, once known)."""
    gpu_memory_mib: int | None = None
    allocated: float = 0
    """GPUs it holds now."""
    workers: list[WorkerView] = []
    min_workers: int = 1
    submitted: datetime
    started: datetime | None = None
    finished: datetime | None = None
    reason: ReasonView | None = None
    expected_start: ExpectedStartView | None = None
    """None: it does not wait, or nobody has looked ahead yet."""
    pauses: int = 0
    attempts: int = 0
    failures: int = 0
    exit_code: int | None = None
    utilized: float | None = None
    """GPUs kept busy now, e.g. 0.4 of the 0.5 allocated; None: nothing measured."""
    utilized_average: float | None = None
    """The same, averaged over the time it was allocated anything, zeros included."""
    memory_used_mib: int | None = None
    gpu_hours: float = 0
    """Allocated, since it was submitted."""
    limit: LimitView | None = None
    """None: it shares no device."""
    notice: str = ""
    """What was done lately because it used more memory than its share; follows its name."""
    idle: IdleView | None = None
    """Since it has kept no GPU busy for its project's badge (5 minutes)."""
    elastic: ElasticView | None = None
    """None: it is not elastic."""
    progress: ProgressView | None = None
    """None: it has reported nothing of itself."""
    released: datetime | None = None
    """Since when a session goes on without its GPUs; they can be asked for again."""
    simulated: bool = False
    mine: bool = False
    """Whether the caller may pause, resume and stop it."""
    version: str = ""
    """Opaque; changes with state, allocation or reason; see `?changed_from=VERSION`."""


class HistoryView(Wire):
    """One line of a workload's life."""

    at: datetime
    kind: str
    text: str


class WorkloadDetail(WorkloadView):
    """A workload with everything `describe` shows its owner."""

    command: list[str] | None = None
    workdir: str = ""
    source: str = ""
    backoff_limit: int = 0
    grace_seconds: int = 30
    expected_runtime: int | None = None
    array_index: int | None = None
    image: str = ""
    gpu_types: list[str] = []
    """Types of GPUs of which it runs on one; none: on any."""
    reported: MetricsView | None = None
    """All that it has reported of itself (`runai.reporter`)."""
    checkpoint_dir: str = ""
    log_dir: str = ""
    processes: list[ProcessView] = []
    """Those that use its devices now, the largest first."""
    history: list[HistoryView] = []


class WorkloadPage(Wire):
    """Some of the workloads that match, in the order of submission, then name."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    items: list[WorkloadView]
    next_token: str | None = Field(default=None, alias="continue")
    """Give it as `continue` for the next page; None: this is the last."""
    counts: dict[WorkloadStateName, int] = {}
    """How many match in each state, those on other pages too."""


class SubmitReply(Wire):
    """What was stored (or, on a dry run, would be) and what the scheduler says of it at once."""

    workloads: list[WorkloadView]
    """Of an array the first 200 elements."""
    array: str = ""
    """What its elements' ids begin with: `vision/sweep` of `vision/sweep-0`; "": it is no array."""
    count: int = 1
    """How many were stored."""
    dry_run: bool = False
    notes: list[str] = []
    """Sentences to print: "waits: no node has 8 GPUs (largest: 5)"."""

    def ids(self) -> list[str]:
        """Return the ids of all, those that are not listed too."""
        if not self.array:
            return [workload.id for workload in self.workloads]
        return [f"{self.array}-{number}" for number in range(self.count)]


# -- projects, nodes -----------------------------------------------------------------------------

UserNames = Annotated[list[UserName], Field(max_length=10_000)]


class ProjectPut(Wire):
    """Create a project or change the fields that are given.

    `quota`, `limit` null: unlimited. Left out: unchanged (or the default of a new project).
    """

    parent: ProjectName | None = None
    quota: Gpus | None = None
    build_quota: Gpus | None = None
    limit: Gpus | None = None
    weight: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    priority: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    never_lent: Gpus | None = None
    min_runtime: Annotated[int, Field(ge=0, le=LONGEST_S)] | None = None
    node_types_build: Annotated[list[Line], Field(max_length=100)] | None = None
    node_types_train: Annotated[list[Line], Field(max_length=100)] | None = None
    members: UserNames | None = None
    groups: UserNames | None = None
    admins: UserNames | None = None
    admin_groups: UserNames | None = None
    idle_session: IdlePut | None = None
    idle_job: IdlePut | None = None
    """Fields left out of these two stay as they are; null is the default."""


class ProjectView(Wire):
    """A project with this cycle's shares. GPUs everywhere; `quota` None is unlimited."""

    name: str
    parent: str | None = None
    quota: float | None
    build_quota: float | None
    limit: float | None = None
    weight: int | None = None
    priority: int = 100
    never_lent: float = 0
    min_runtime: int = 0
    node_types_build: list[str] | None = None
    node_types_train: list[str] | None = None
    members: list[str] = []
    groups: list[str] = []
    admins: list[str] = []
    admin_groups: list[str] = []
    allocated: float = 0
    build_allocated: float = 0
    """The part of `allocated` that non-preemptible sessions hold."""
    fair_share: float = 0
    over_quota: float = 0
    waiting: int = 0
    """Workloads in the queue."""
    utilized: float | None = None
    idle_session: IdlePut = IdlePut()
    idle_job: IdlePut = IdlePut(notify_s=None)
    may_admin: bool = False
    may_submit: bool = False


class Overview(Wire):
    """Everything the caller may see, at one instant: the body of an `overview` event."""

    at: datetime
    projects: list[ProjectView]
    workloads: list[WorkloadView]
    waiting_left_out: int = 0  # of long queues the caller's own and the first are listed
    nodes: list[NodeView]
    idle_gpu_hours_reclaimed: float = 0
    """What would have been idle, had it not been given to others; ever."""
    notifications: list[NotificationView] = []
    """What happened to the caller's workloads in the last hour, the latest first."""
    notes: list[str] = []
    """What an admin should know: "quotas add up to 6 GPUs, the cluster has 5"."""


class WhoAmI(Wire):
    """The caller as the service sees them."""

    name: str
    kind: Literal["user", "hub", "agent", "worker"]
    admin: bool
    groups: list[str]
    projects: list[str]
    default_project: str | None
    version: str


# -- usage ---------------------------------------------------------------------------------------


class PastWorkload(Wire):
    """A workload of the past, as far as the ledger knows it: what a simulation replays."""

    id: str
    project: str
    user: str
    kind: Literal["job", "session"]
    submitted: datetime
    gpus: float
    """What it held on average while it held anything."""
    held_s: float
    """For how long it held anything; pauses left out."""
    starts: int = 1
    """How often it was started."""
    asked: dict[str, Any] | None = None
    """What it asked for, as in a snapshot, alike workers once with their `count`; None: nobody
    wrote that down."""
