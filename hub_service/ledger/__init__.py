"""History of allocation, utilization and events, over any time range.

`Ledger` is the public interface. The history is no source of truth: losing it costs charts, never
a job.
"""

from runai.hub_service.ledger.integration import Held
from runai.hub_service.ledger.ledger import Ledger
from runai.hub_service.ledger.past import Asked, Past
from runai.hub_service.ledger.query import Point, Usage, UsageFilter
from runai.hub_service.ledger.store import Event
from runai.hub_service.ledger.totals import Totals

__all__ = ["Asked", "Event", "Held", "Ledger", "Past", "Point", "Totals", "Usage", "UsageFilter"]
