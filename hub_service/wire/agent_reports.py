"""The wire contract between the service and a node's agent: measurements, and what to measure.

Knows the messages only. An agent measures (`runai.hub_service.agent`), the ledger keeps what it
reports.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from runai.hub_service.wire.base_schema import MOST_PID, Wire
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.schemas import DeviceShareView

Uuid = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:/_.-]+$", max_length=100)]


Told = Annotated[str, AfterValidator(partial(printable, most=500))]
"""Programs, notebooks and accounts are called as their users like: no refusal would be of use."""
Busy = Annotated[float, Field(ge=0, le=1000)]
Mib = Annotated[int, Field(ge=0, le=2**40)]
Moment = Annotated[float, Field(ge=0, le=1e11)]


class UsageSample(Wire):
    """What one workload's processes used of one device, in the interval that ends at `at`."""

    workload: Told
    """"" for processes that belong to no workload."""
    device: Uuid
    """UUID."""
    utilization: Busy | None
    """Busy share of the whole device, 0..1; None: unknown, which is not idle."""
    memory_mib: Mib | None
    """None: unknown, which is not none."""
    cpu: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Processor cores that its programs on the device kept busy; None: nobody looked."""


class ProcessSample(Wire):
    """What one process used of one device; no command line, which may hold secrets."""

    device: Uuid
    """UUID."""
    pid: Annotated[int, Field(ge=0, le=MOST_PID)]
    """As the node counts; a container may count otherwise."""
    workload: Told
    """"" for a process that belongs to no workload."""
    worker: Told
    account: Told
    """The Unix account that it runs under; "" where that is not to be seen."""
    name: Told
    """The program's name, e.g. `python3`."""
    notebook: Told = ""
    """The notebook whose kernel it is, without its folders."""
    utilization: Busy | None
    memory_mib: Mib | None


class DeviceSample(Wire):
    """One device as a whole."""

    device: Uuid
    utilization: Busy | None
    memory_mib: Mib | None
    fault: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=200)] = ""
    """Why nothing new may be placed on it, as half a sentence; "" while it is healthy."""


class Notice(Wire):
    """What was done about a workload that is over its memory on a device, for its owner to read."""

    workload: Told
    device: Uuid
    """UUID."""
    at: Moment
    rung: Literal["notice", "interrupt", "terminate", "kill", "back"]
    text: Told
    """What follows the workload's name in a sentence."""


class PodDevices(Wire):
    """Which devices the kubelet has given to a pod."""

    pod: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$", max_length=320)]
    """`namespace/name`."""
    devices: list[Uuid]


class NodeDevice(Wire):
    """A device that a node has."""

    uuid: Uuid
    name: Told
    memory_mib: Mib
    simulated: bool = False


class AgentReport(Wire):
    """One second of one node, from its agent. A failed poll sends no samples: a gap, not a zero.

    `samples` are sums over `processes`, with a zero for each holder that has none; all figures are
    averages over the whole interval, idle times included.
    """

    node: Told
    at: Moment
    interval: Annotated[float, Field(ge=0, le=1e6)]
    age: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Seconds from `at` to its sending, by a steady clock: what dates it where clocks differ."""
    devices: list[DeviceSample]
    samples: list[UsageSample]
    processes: tuple[ProcessSample, ...] = ()
    notices: tuple[Notice, ...] = ()
    tiers: dict[str, Literal["frameworks", "mps", "driver"]] = Field(default_factory=dict)
    """What keeps each workload within its share; who is not named: the frameworks."""
    pods: tuple[PodDevices, ...] | None = None
    """On a node of Kubernetes: who has which devices; None: the kubelet was not asked, or away."""
    inventory: tuple[NodeDevice, ...] = ()
    """There: the devices of the node, in the order in which the driver counts them."""
    pods_age: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Seconds since `pods` and `inventory` were asked for: a report that waited has those of its
    sending. None: they are as old as the rest."""
    no_hard_limit: Told = ""
    """Why the node's driver keeps no limits, as half a sentence."""


class AgentAllocation(Wire):
    """A worker that holds devices of the node, and the process whose tree uses them."""

    workload: str
    worker: str
    project: str
    user: str
    shares: list[DeviceShareView]
    pid: int | None
    created: float | None
    limits_mib: dict[str, int] = Field(default_factory=dict)
    """What it may use of each device (UUID) that it shares; a whole device has no limit."""
    is_server: bool = False
    """Whether its process is a notebook server, which is to outlive its kernels."""
    release: bool = False
    """Whether its programs, the notebook server left out, are to leave the devices."""
    cgroup: str = ""
    """Its own control group: a pod's UID, or a path below the version 2 root; "" if it has none."""
    checkpoint_dir: str = ""
    """What its processes have as `RUNAI_CHECKPOINT_DIR`; "" where that is not known.

    Another installation on the same machine may have a worker of the same name.
    """


class AgentReply(Wire):
    """What the agent needs for the next second."""

    allocations: list[AgentAllocation]
