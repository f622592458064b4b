"""History: who was allocated what and how busy it was, over any range, and what happened when.

`Ledger` is all that others need. It holds no truth: losing it loses charts, never a job.
"""

from runai.hub_service.ledger.integration import Held
from runai.hub_service.ledger.ledger import Ledger
from runai.hub_service.ledger.past import Asked, Past
from runai.hub_service.ledger.query import Point, Usage, UsageFilter
from runai.hub_service.ledger.store import Event
from runai.hub_service.ledger.totals import Totals

__all__ = ["Asked", "Event", "Held", "Ledger", "Past", "Point", "Totals", "Usage", "UsageFilter"]
