"""The wire contract of reports: by a node's agent, and by the pods of elastic jobs.

The messages of the pods are those of `elastic_messages`, which local workers read from files; these
schemas validate them at the API (docs/dev/elastic.md).
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from runai.hub_service.wire.amounts import NUMBER
from runai.hub_service.wire.base_schema import MOST_PID, Wire
from runai.hub_service.wire.elastic_messages import Reason, Target, WorkerPhase, WorkerStatus
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.schemas import DeviceShareView

Uuid = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:/_.-]+$", max_length=100)]


PrintableText = Annotated[str, AfterValidator(partial(printable, most=500))]
"""A name that a user chose (program, notebook, account): escaped and shortened, never rejected."""
Busy = Annotated[float, Field(ge=0, le=1000), NUMBER]
Mib = Annotated[int, Field(ge=0, le=2**40), NUMBER]
Moment = Annotated[float, Field(ge=0, le=1e11), NUMBER]


class UsageSample(Wire):
    """Usage of one device by one workload's processes, in the interval that ends at `at`."""

    workload: PrintableText
    """"" for processes that belong to no workload."""
    device: Uuid
    """UUID."""
    utilization: Busy | None
    """Busy share of the whole device, 0..1; None: unknown, which does not mean idle."""
    memory_mib: Mib | None
    """None: unknown, which does not mean 0."""
    cpu: Annotated[float, Field(ge=0, le=1e6), NUMBER] | None = None
    """CPU cores that its programs on the device kept busy; None: not measured."""


class ProcessSample(Wire):
    """Usage of one device by one process; no command line, which may contain secrets."""

    device: Uuid
    """UUID."""
    pid: Annotated[int, Field(ge=0, le=MOST_PID), NUMBER]
    """PID in the node's namespace; a container may have its own."""
    workload: PrintableText
    """"" for a process that belongs to no workload."""
    worker: PrintableText
    account: PrintableText
    """The Unix account that it runs under; "" where the node hides it."""
    name: PrintableText
    """The program's name, e.g. `python3`."""
    notebook: PrintableText = ""
    """A kernel's notebook, without its folders."""
    utilization: Busy | None
    memory_mib: Mib | None


class DeviceSample(Wire):
    """Usage and health of one whole device."""

    device: Uuid
    utilization: Busy | None
    memory_mib: Mib | None
    fault: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=200)] = ""
    """Why no new worker may be placed on it, as half a sentence; "" while healthy."""


class Notice(Wire):
    """An enforcement of a workload's memory limit on a device, for its owner to read."""

    workload: PrintableText
    device: Uuid
    """UUID."""
    at: Moment
    rung: Literal["notice", "interrupt", "terminate", "kill", "back"]
    text: PrintableText
    """Rest of a sentence that begins with the workload's name."""


class PodDevices(Wire):
    """The devices that the kubelet allocated to a pod."""

    pod: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$", max_length=320)]
    """`namespace/name`."""
    devices: list[Uuid]


class NodeDevice(Wire):
    """One GPU or MIG instance of the reporting node."""

    uuid: Uuid
    name: PrintableText
    memory_mib: Mib
    simulated: bool = False


class AgentReport(Wire):
    """One second of one node's measurements. A failed poll sends no samples: a gap, not a zero.

    `samples` are sums over `processes`, with a zero for each allocation without processes; all
    figures are averages over the whole interval, idle times included.
    """

    node: PrintableText
    at: Moment
    interval: Annotated[float, Field(ge=0, le=1e6), NUMBER]
    age: Annotated[float, Field(ge=0, le=1e9), NUMBER] | None = None
    """Seconds from `at` to its sending, by a monotonic clock; dates it where clocks differ."""
    devices: list[DeviceSample]
    samples: list[UsageSample]
    processes: tuple[ProcessSample, ...] = ()
    notices: tuple[Notice, ...] = ()
    tiers: dict[str, Literal["frameworks", "mps", "driver"]] = Field(default_factory=dict)
    """The mechanism that limits each workload's memory; default: `frameworks`."""
    pods: tuple[PodDevices, ...] | None = None
    """Devices of each pod (Kubernetes only); None: no answer of the kubelet, or no query."""
    inventory: tuple[NodeDevice, ...] = ()
    """Devices of the node in the driver's order (Kubernetes only)."""
    pods_age: Annotated[float, Field(ge=0, le=1e9), NUMBER] | None = None
    """Seconds since the query for `pods` and `inventory`; None: as old as the samples.

    A delayed report carries the `pods` and `inventory` of its sending.
    """
    no_hard_limit: PrintableText = ""
    """Why the node's driver enforces no limits, as half a sentence."""


class AgentAllocation(Wire):
    """A worker with devices on the node, and the root of its process tree."""

    workload: str
    worker: str
    project: str
    user: str
    shares: list[DeviceShareView]
    pid: int | None
    created: float | None
    limits_mib: dict[str, int] = Field(default_factory=dict)
    """Its limit on each device (UUID) that it shares; a whole device has no limit."""
    is_server: bool = False
    """Whether its process is a notebook server, which must outlive its kernels."""
    release: bool = False
    """Whether the agent stops its programs, except the notebook server, to free the devices."""
    cgroup: str = ""
    """Its own cgroup: a pod's UID, or a path below the v2 root; "" for none."""
    checkpoint_dir: str = ""
    """`RUNAI_CHECKPOINT_DIR` of its processes; "" if unknown.

    It tells apart workers of the same name from two installations on one machine.
    """


class AgentReply(Wire):
    """Allocations to measure in the next second."""

    allocations: list[AgentAllocation]


Count = Annotated[int, Field(ge=0, le=1 << 53), NUMBER]
Speed = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False), NUMBER]


class TargetMessage(Wire):
    """Workers that train from now on."""

    gen: Count
    ranks: tuple[Annotated[str, StringConstraints(max_length=100)], ...]
    store: str
    gpus: Count
    min: Count
    max: Count
    reason: Reason
    deadline: str = ""


class TargetReply(Wire):
    """The newest target; None: no newer one appeared in time."""

    target: TargetMessage | None = None

    @classmethod
    def of(cls, target: Target) -> "TargetReply":
        """Return the reply for a target."""
        return cls(target=TargetMessage.model_validate(target.to_json()))

    def read(self) -> Target | None:
        """Convert the reply to a `Target`; None if no newer one appeared in time."""
        if self.target is None:
            return None
        return Target.from_json(
            self.target.model_dump(mode="json") | {"ranks": list(self.target.ranks)}
        )


class StatusReport(Wire):
    """Phase, progress and speed of an elastic job's worker, as it reports them."""

    gen: Count
    state: WorkerPhase
    pid: Count
    update: Count = 0
    samples_per_s: Speed = 0.0
    gpus: Count = 0
    global_batch: Count = 0
    steps: Count = 0

    @classmethod
    def of(cls, status: WorkerStatus) -> "StatusReport":
        """Return the report of a status, without the worker: its token identifies it."""
        fields = status.to_json()
        del fields["worker"]
        return cls.model_validate(fields)

    def read(self, worker: str) -> WorkerStatus:
        """Parse the status of this worker."""
        return WorkerStatus.from_json({"worker": worker, **self.model_dump(mode="json")})


class EndedReport(Wire):
    """Exit code of a worker's program; 128 + N after signal N."""

    exit_code: Annotated[int, Field(ge=0, le=255), NUMBER]


class EndedReply(Wire):
    """Exit code for the worker's pod."""

    exit_code: Annotated[int, Field(ge=0, le=255), NUMBER]
