"""When what waits is expected to start: part of the wire contract.

Known by `schemas` and `questions`; made by `start_views`.
"""

from datetime import datetime

from runai.hub_service.api.wire import Wire


class ExpectedStartView(Wire):
    """When it starts if nothing else is submitted; None: nobody can tell."""

    at: datetime | None
    earliest: datetime | None
    latest: datetime | None
    is_estimated: bool
    """Whether it rests on run times that nobody stated: then the bounds hold every other time."""
    text: str
