"""The wire contract between the service and a node's agent: measurements, and what to measure.

Knows the messages only. An agent measures (`runai.hub_service.agent`), the ledger keeps what it
reports.
"""

from runai.hub_service.api.schemas import DeviceShareView, Wire

__all__ = ["AgentAllocation", "AgentReply", "AgentReport", "DeviceSample", "UsageSample"]


class UsageSample(Wire):
    """What one workload's processes used of one device, in the interval that ends at `at`."""

    workload: str
    """"" for processes that belong to no workload."""
    device: str
    """UUID."""
    utilization: float | None
    """Busy share of the whole device, 0..1; None: unknown, which is not idle."""
    memory_mib: int


class DeviceSample(Wire):
    """One device as a whole."""

    device: str
    utilization: float | None
    memory_mib: int | None
    healthy: bool = True


class AgentReport(Wire):
    """One second of one node, from its agent. A failed poll sends no samples: a gap, not a zero."""

    node: str
    at: float
    interval: float
    devices: list[DeviceSample]
    samples: list[UsageSample]


class AgentAllocation(Wire):
    """A worker that holds devices of the node, and the process whose tree uses them."""

    workload: str
    worker: str
    project: str
    user: str
    shares: list[DeviceShareView]
    pid: int | None
    created: float | None


class AgentReply(Wire):
    """What the agent needs for the next second."""

    allocations: list[AgentAllocation]
