"""How a workload's memory limit and its processes are shown on the wire.

Part of `schemas`, which has the workload that they belong to. Filled by `limit_views`.
"""

from typing import Literal

from runai.hub_service.api.wire import Wire


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
