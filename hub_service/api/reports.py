"""The wire contract between the service and a node's agent: measurements, and what to measure.

Knows the messages only. An agent measures (`runai.hub_service.agent`), the ledger keeps what it
reports.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from runai.hub_service.api.schemas import DeviceShareView, Wire

__all__ = [
    "AgentAllocation",
    "AgentReply",
    "AgentReport",
    "DeviceSample",
    "NodeDevice",
    "Notice",
    "PodDevices",
    "ProcessSample",
    "UsageSample",
]


Uuid = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9:/_.-]+$", max_length=100)]


class UsageSample(Wire):
    """What one workload's processes used of one device, in the interval that ends at `at`."""

    workload: str
    """"" for processes that belong to no workload."""
    device: str
    """UUID."""
    utilization: float | None
    """Busy share of the whole device, 0..1; None: unknown, which is not idle."""
    memory_mib: int | None
    """None: unknown, which is not none."""
    cpu: float | None = None
    """Processor cores that its programs on the device kept busy; None: nobody looked."""


class ProcessSample(Wire):
    """What one process used of one device; no command line, which may hold secrets."""

    device: str
    """UUID."""
    pid: int
    """As the node counts; a container may count otherwise."""
    workload: str
    """"" for a process that belongs to no workload."""
    worker: str
    account: str
    """The Unix account that it runs under; "" where that is not to be seen."""
    name: str
    """The program's name, e.g. `python3`."""
    notebook: str = ""
    """The notebook whose kernel it is, without its folders."""
    utilization: float | None
    memory_mib: int | None


class DeviceSample(Wire):
    """One device as a whole."""

    device: str
    utilization: float | None
    memory_mib: int | None
    fault: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=200)] = ""
    """Why nothing new may be placed on it, as half a sentence; "" while it is healthy."""


class Notice(Wire):
    """What was done about a workload that is over its memory on a device, for its owner to read."""

    workload: str
    device: str
    """UUID."""
    at: float
    rung: Literal["notice", "interrupt", "terminate", "kill", "back"]
    text: Annotated[str, StringConstraints(max_length=500)]
    """What follows the workload's name in a sentence."""


class PodDevices(Wire):
    """Which devices the kubelet has given to a pod."""

    pod: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[a-z0-9.-]+$", max_length=320)]
    """`namespace/name`."""
    devices: list[Uuid]


class NodeDevice(Wire):
    """A device that a node has."""

    uuid: Uuid
    name: Annotated[str, StringConstraints(max_length=100)]
    memory_mib: Annotated[int, Field(ge=0)]
    simulated: bool = False


class AgentReport(Wire):
    """One second of one node, from its agent. A failed poll sends no samples: a gap, not a zero.

    `samples` are sums over `processes`, with a zero for each holder that has none; all figures are
    averages over the whole interval, idle times included.
    """

    node: str
    at: float
    interval: float
    age: Annotated[float, Field(ge=0)] | None = None
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
    no_hard_limit: Annotated[str, StringConstraints(max_length=500)] = ""
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


class AgentReply(Wire):
    """What the agent needs for the next second."""

    allocations: list[AgentAllocation]
