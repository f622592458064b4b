"""The wire contract: messages over HTTP between the service and its clients.

Validation happens here, at the border: user input becomes a typed value or a one-sentence error.
GPUs on the wire are decimal numbers (0.5), memory is in MiB, times are RFC 3339 in UTC.
Unknown fields are errors. Only `client` and `api` use these; clusters use `model.records`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

from runai.hub_service.wire.amounts import (
    NUMBER,
    DurationText,
    Gpus,
    Protection,
    Seconds,
    WorkerCount,
    seconds,
)
from runai.hub_service.wire.base_schema import Line, ProjectName, Umask, UserName, Wire
from runai.hub_service.wire.device_schemas import LimitView, NodeView, ProcessView
from runai.hub_service.wire.program_schemas import CodeView


class ExpectedStartView(Wire):
    """Predicted start of a workload if nothing else is submitted; None: unknown."""

    at: datetime | None
    earliest: datetime | None
    latest: datetime | None
    is_estimated: bool
    """Whether it rests on unstated run times. Then half of the starts fall within the bounds."""
    text: str


class ProgressView(Wire):
    """Progress of a job, as it reports by `runai.reporter`."""

    done: float | None = None
    """Completed part of its epochs, 0..1; None: it reported no epochs."""
    text: str
    """ "3 of 10 epochs · loss 0.0123 · accuracy 0.98"; epochs alone without read permission."""


class MetricsView(Wire):
    """Metrics and parameters that a job reports."""

    metrics: dict[str, float | None]
    """A value is None if it is not a finite number."""
    parameters: dict[str, str]
    text: str
    """ "loss 0.0123, accuracy 0.98, optimizer_name Adam"."""


class NotificationView(Wire):
    """An event of one of the caller's workloads."""

    at: datetime
    kind: Literal["paused", "resumed", "failed", "idle", "ends_soon", "timed_out"]
    workload: str
    text: str


_Bounded = Annotated[int, Field(ge=60, le=30 * 86400), NUMBER]


IdleSeconds = Annotated[
    _Bounded, BeforeValidator(seconds, json_schema_input_type=_Bounded | DurationText)
]


class IdlePut(Wire):
    """Actions on a workload after so many seconds without using its GPUs; null is never."""

    badge_s: IdleSeconds | None = 300
    notify_s: IdleSeconds | None = 1200
    release_s: IdleSeconds | None = None
    """Sessions only: they continue without their GPUs."""
    stop_s: IdleSeconds | None = None


class TimePut(Wire):
    """Limits of a workload's running time, in seconds; null is none."""

    default_s: Seconds | None = None
    """Of a workload that asks for none; null: `most_s`."""
    most_s: Seconds | None = None
    """The longest that a workload may ask for."""
    warn_s: Seconds = 600
    """Its owner is warned so long before the end, or a tenth of the limit if that is less."""


class IdleView(Wire):
    """Idle time of a workload's GPUs, and the action that follows."""

    since: datetime
    """Now minus the measured idle time; gaps in measuring do not count."""
    text: str
    """For its owner: the idle time, the action and its time."""
    told: bool = False
    """Whether its history notified its owner."""
    takes: Literal["release", "stop"] | None = None
    """Action of its project if it stays idle; None: none."""
    takes_at: datetime | None = None
    keeps_left: int = 0
    """Remaining extensions of 30 minutes each."""
    kept: bool = False
    """Whether its owner requested an extension in this idle period."""
    releasing: bool = False
    """Whether its programs are being stopped to free its GPUs for other workloads."""
    releasable: bool = False
    """Whether its owner may release its GPUs while it continues."""


class SpeedView(Wire):
    """Measured speed of a job with this number of GPUs."""

    gpus: int
    samples_per_s: float


class MeasuredView(Wire):
    """Measured use of a workload's GPUs; a value is None if it was not measured."""

    utilized: float | None = None
    """GPUs kept busy now, e.g. 0.4 of the 0.5 allocated."""
    utilized_average: float | None = None
    """Average of `utilized` over the time it had an allocation, zeros included."""
    memory_used_mib: int | None = None
    gpu_hours: float = 0
    """Allocated GPU-hours since its submission."""


class RunTimeView(Wire):
    """Running time of a workload with a limit; pauses do not count."""

    ran_s: float = 0
    """Seconds that it ran before `runs_since`."""
    runs_since: datetime | None = None
    ends_at: datetime | None = None
    """When its limit stops it for good; None: it does not run now."""
    warns_at: datetime | None = None
    """When its owner is warned of that."""


class ElasticView(Wire):
    """An elastic job's size in GPUs, now and at the bounds, and its measured speeds."""

    workers: int = 1
    """Maximum number of processes; 1 for a single process that uses several GPUs."""
    least: int
    training: int
    """GPUs of the workers that train now."""
    most: int
    joining: int = 0
    """GPUs of workers that have started and are not ready yet."""
    resizes: int = 0
    global_batch: int | None = None
    """Samples per update, the same at every size of the job."""
    steps: int | None = None
    """Micro-batches per update on each GPU now."""
    speeds: tuple[SpeedView, ...] = ()
    text: str
    """ "2 of 1 to 4 GPUs, 1 joining; 256 samples an update in 2 steps"."""
    speed: str = ""
    """ "100 samples/s on 1 GPU, 190 on 2"."""


# -- workloads -----------------------------------------------------------------------------------


SAVES = "saves its work when it is paused: first to give way, and may be moved"
"""Meaning of a workload's `saves`, for its user."""


class ScaleRequest(Wire):
    """New bounds on an elastic job's number of workers; None: unchanged."""

    workers: WorkerCount | None = None
    min_workers: WorkerCount | None = None


class ReasonView(Wire):
    """Reason for a wait or a stop: a stable code, the rule's letter, a sentence."""

    code: str
    rule: str = ""
    text: str
    gains: str = ""
    """The workload that benefits from the decision, if any (`for` in a plan)."""
    position: int | None = None

    @property
    def is_making_room(self) -> bool:
        """Return True if the workload waits only for the ones that stop for it."""
        return self.code == "stopping" and self.rule == "R7"


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
    gpu_type: str = ""
    """Type of the devices that it holds."""
    devices: list[DeviceShareView] = []
    started: datetime | None = None
    exit_code: int | None = None


WorkloadStateName = Literal[
    "queued", "starting", "running", "stopping", "paused", "suspended", "retrying",
    "succeeded", "failed", "ended", "timed_out",
]  # fmt: skip
FINISHED: Final = frozenset({"succeeded", "failed", "ended", "timed_out"})
"""States after which nothing runs under the name again."""


class WorkloadView(Wire):
    """A workload in a list: owner, request, allocation, utilization, waiting reason."""

    id: str
    uid: str = ""
    """Its identity, which no later workload of this name has; an array's elements have its own."""
    project: str
    name: str
    user: str
    kind: Literal["job", "session"]
    server: str = ""
    """JupyterHub's name of a session's server; "" for the default server and for jobs."""
    state: WorkloadStateName
    preemptible: bool
    priority: int
    gpus: float
    """GPUs requested by all workers together. Memory counts as its part of a device, once known."""
    gpu_memory_mib: int | None = None
    cpu: float = 0
    """CPUs requested by all workers together; `memory_mib` is the same."""
    memory_mib: int = 0
    gpu_types: list[str] = []
    """Acceptable types of GPUs, the preferred first, of which it uses one; empty: any type."""
    allocated: float = 0
    """GPUs allocated to it now."""
    workers: list[WorkerView] = []
    min_workers: int = 1
    submitted: datetime
    started: datetime | None = None
    finished: datetime | None = None
    reason: ReasonView | None = None
    expected_start: ExpectedStartView | None = None
    """None: it does not wait, or the scheduler has not predicted its start yet."""
    max_runtime: int | None = None
    """Limit of its running time in seconds; null: none."""
    run_time: RunTimeView | None = None
    """None: its running time has no limit."""
    pauses: int = 0
    moved: str = ""
    """Where it moved for whom; empty: its last stop was no move. Its details add the seconds."""
    unsaved: str = ""
    """Warning after a pause that left nothing new in its checkpoint directory, until it starts."""
    killed: str = ""
    """Warning after a stop that killed processes at the end of the grace, until it starts."""
    attempts: int = 0
    failures: int = 0
    exit_code: int | None = None
    measured: MeasuredView = MeasuredView()
    limit: LimitView | None = None
    """None: it shares no device."""
    notice: str = ""
    """Latest enforcement of its memory limit; continues a sentence that starts with its name."""
    idle: IdleView | None = None
    """Set once it kept no GPU busy for its project's `badge_s` (default: 5 minutes)."""
    elastic: ElasticView | None = None
    """None: it is not elastic."""
    array: int | None = None
    """Number of jobs in the array that it is (`array_index` null), or to which it belongs."""
    array_index: int | None = None
    left: list[tuple[int, int]] = []
    """Ranges of indexes that have no entry of their own, begin and end: this one is theirs."""
    states: dict[WorkloadStateName, int] = {}
    """Number of jobs by state, of an array that was asked for by its name."""
    saves: bool = False
    """Whether it is known to save its work when it is paused: it gives way first, and may move."""
    progress: ProgressView | None = None
    """None: it has reported no progress."""
    released: datetime | None = None
    """When a session released its GPUs; it continues and can request them again."""
    simulated: bool = False
    manageable: bool = False
    """Whether the caller may suspend, resume and delete it."""
    version: str = ""
    """Opaque; changes with state, allocation or reason; see `?changed_from=VERSION`."""

    @property
    def is_in_queue(self) -> bool:
        """Return True if the workload has a place in a queue: only then a wait has causes."""
        return self.reason is not None and self.reason.position is not None

    def allocated_gpu_types(self) -> list[str]:
        """Return the types of the devices that its workers hold."""
        return list(dict.fromkeys(w.gpu_type for w in self.workers if w.gpu_type))

    def gpu_type_text(self) -> str:
        """Return the type that it got, and those that it asked for in order; "" if neither."""
        requested = ", else ".join(self.gpu_types)
        allocated = " and ".join(self.allocated_gpu_types())
        both = f"{allocated} (asked for {requested})"
        return both if allocated and requested else allocated or requested

    def time_warning(self, now: datetime) -> str:
        """Return the warning before the end of its time; "" before that is due."""
        time = self.run_time or RunTimeView()
        if time.ends_at is None or time.warns_at is None or now < time.warns_at:
            return ""
        left = max(0, round((time.ends_at - now).total_seconds()))
        return f"its time limit ends it in {f'{left // 60} min' if left >= 60 else f'{left} s'}"

    @property
    def size(self) -> int:
        """Return the number of jobs that this entry stands for."""
        return sum(end - begin for begin, end in self.left) or 1


class Fact(Wire):
    """One line about a workload, as every surface shows it."""

    label: str
    text: str
    level: Literal["plain", "warning"] = "plain"
    at: datetime | None = None
    """A time that belongs to the text; readers add it in their time zone."""
    link: str = ""
    """Page of what the text names, below the service's address; "": none."""


class HistoryView(Wire):
    """One event in a workload's history."""

    at: datetime
    kind: str
    text: str


class WorkloadDetail(WorkloadView):
    """A workload with every field that `describe` shows its owner."""

    facts: list[Fact] = []
    """Everything about it as lines, for readers; the same on every surface."""

    command: list[str] | None = None
    workdir: str = ""
    env_names: list[str] = []
    """Names of the variables that its user set; for its owner alone."""
    source: str = ""
    options: dict[str, bool | int | str] = {}
    """Further fields of its request that are set, by name: `grace_seconds`, `image`, …"""
    code: CodeView | None = None
    """The code that was submitted; None: unknown."""
    code_started: CodeView | None = None
    """The code of its last start; None: unknown, or on Kubernetes."""
    python: str = ""
    """Path of the Python of its last start; "": its program is none, or not known."""
    umask: str = ""
    """Three octal digits; "" unless it runs as its user's Unix account."""
    account: str = ""
    """Sentence on a uid that is not its user's any more; "" while it is."""
    reported: MetricsView | None = None
    """All metrics and parameters it reported (`runai.reporter`)."""
    checkpoint_dir: str = ""
    log_dir: str = ""
    processes: list[ProcessView] = []
    """Processes that use its devices now, the largest first."""
    history: list[HistoryView] = []


class WorkloadPage(Wire):
    """One page of the matching workloads, ordered by submission, then name."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    items: list[WorkloadView]
    next_token: str | None = Field(default=None, alias="continue")
    """Token to pass as `continue` for the next page; None: this is the last page."""
    counts: dict[WorkloadStateName, int] = {}
    """Number of matches in each state, over all pages."""


class SubmitReply(Wire):
    """Workloads that a submission stored (a dry run: would store), with the first decision."""

    workloads: list[WorkloadView]
    """At most the first 200 elements of an array."""
    array: str = ""  # prefix of an array's ids: `vision/sweep` for `vision/sweep-0`
    count: int = 1
    dry_run: bool = False
    unchecked: str = ""  # what a dry run does not check: "taints, volumes, admission"
    notes: list[str] = []  # sentences to print

    def ids(self) -> list[str]:
        """Return the ids of all stored workloads, including elements not listed."""
        if not self.array:
            return [workload.id for workload in self.workloads]
        return [f"{self.array}-{number}" for number in range(self.count)]


# -- projects, nodes -----------------------------------------------------------------------------

UserNames = Annotated[list[UserName], Field(max_length=10_000)]


def _form_of_quota(value: object) -> str:
    return "table" if isinstance(value, Mapping) else "number"


GpusByType = Annotated[dict[Line, Gpus | None], Field(min_length=1, max_length=100)]
"""GPUs by words of a type's name, `*` for all other types together; null: unlimited."""

Quota = Annotated[
    Annotated[Gpus, Tag("number")] | Annotated[GpusByType, Tag("table")],
    Discriminator(_form_of_quota),
]


class ProjectPut(Wire):
    """Create a project, or change the given fields of an existing one.

    `quota`, `limit` null: unlimited; `quota` may be a table by GPU type. Omitted fields stay
    unchanged (a new project: the default).
    """

    parent: ProjectName | None = None
    quota: Quota | None = None
    build_quota: Gpus | None = None
    limit: Gpus | None = None
    weight: Annotated[int, Field(ge=0, le=1_000_000), NUMBER] | None = None
    priority: Annotated[int, Field(ge=0, le=1_000_000), NUMBER] | None = None
    never_lent: Gpus | None = None
    min_runtime: Protection | None = None
    node_types_build: Annotated[list[Line], Field(max_length=100)] | None = None
    node_types_train: Annotated[list[Line], Field(max_length=100)] | None = None
    members: UserNames | None = None
    groups: UserNames | None = None
    admins: UserNames | None = None
    admin_groups: UserNames | None = None
    idle_session: IdlePut | None = None
    idle_job: IdlePut | None = None
    """Omitted fields of `idle_session` and `idle_job` stay unchanged; null is the default."""
    time_session: TimePut | None = None
    time_job: TimePut | None = None
    """Limits of running time; omitted fields stay unchanged, null is the default: no limit."""
    umask: Umask | None = None


class ProjectView(Wire):
    """A project with its shares in this cycle, in GPUs; `quota` None is unlimited."""

    name: str
    parent: str | None = None
    quota: float | None
    quota_by_type: dict[str, float | None] | None = None
    """The quota by GPU type, if it is given so; `quota` is the sum."""
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
    time_session: TimePut = TimePut()
    time_job: TimePut = TimePut()
    umask: str = ""
    may_admin: bool = False
    may_submit: bool = False
    notes: list[str] = []
    """Sentences on what it holds above its limit, and on users who left it."""

    def quota_parts(self) -> str:
        """Return the quotas by GPU type, as in `h100 2, * 4`; "" if the quota is one number."""
        table = (self.quota_by_type or {}).items()
        return ", ".join(f"{t} {'none' if v is None else f'{round(v, 3):g}'}" for t, v in table)


class Overview(Wire):
    """Snapshot of all that the caller may see: the body of an `overview` event."""

    at: datetime
    projects: list[ProjectView]
    workloads: list[WorkloadView]
    waiting_left_out: int = 0  # long queues list the caller's workloads and the first ones only
    nodes: list[NodeView]
    idle_gpu_hours_reclaimed: float = 0
    """GPU-hours reallocated from idle workloads since the installation."""
    notifications: list[NotificationView] = []
    """Events of the caller's workloads in the last hour, the latest first."""
    notes: list[str] = []
    """Warnings for admins: "quotas add up to 6 GPUs, the cluster has 5"."""


class WhoAmI(Wire):
    """The caller's identity, groups and projects."""

    name: str
    kind: Literal["user", "hub", "agent", "worker"]
    admin: bool
    groups: list[str]
    projects: list[str]
    default_project: str | None
    version: str
