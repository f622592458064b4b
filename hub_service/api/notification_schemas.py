"""The part of the wire contract that tells people what happened to their workloads.

Part of `schemas`, which hands it on.
"""

from datetime import datetime
from typing import Literal

from runai.hub_service.api.wire import Wire


class NotificationView(Wire):
    """What happened to a workload of the caller's."""

    at: datetime
    kind: Literal["paused", "resumed", "failed", "idle"]
    workload: str
    text: str
