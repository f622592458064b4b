"""History of allocation, utilization and events, over any time range.

`Ledger` is the public interface. The history is no source of truth: losing it costs charts, never
a job.
"""

from runai.hub_service.ledger.integration import DeviceAllocation
from runai.hub_service.ledger.ledger import Ledger
from runai.hub_service.ledger.past_workloads import PastRequest, PastWorkloadRecord
from runai.hub_service.ledger.query import Point, Usage, UsageFilter
from runai.hub_service.ledger.store import Event
from runai.hub_service.ledger.totals import Totals

__all__ = [
    "DeviceAllocation",
    "Event",
    "Ledger",
    "PastRequest",
    "PastWorkloadRecord",
    "Point",
    "Totals",
    "Usage",
    "UsageFilter",
]
