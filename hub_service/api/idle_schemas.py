"""The wire contract of idle GPUs: a project's rules, and how idle a workload is.

Part of `schemas`, where every other message is.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from runai.hub_service.api.durations import Text, seconds
from runai.hub_service.api.wire import Wire

_Bounded = Annotated[int, Field(ge=60, le=30 * 86400)]
IdleSeconds = Annotated[_Bounded, BeforeValidator(seconds, json_schema_input_type=_Bounded | Text)]


class IdlePut(Wire):
    """What happens after so many seconds without using the GPUs; null is never."""

    badge_s: IdleSeconds | None = 300
    notify_s: IdleSeconds | None = 1200
    release_s: IdleSeconds | None = None
    """Sessions only: they go on without their GPUs."""
    stop_s: IdleSeconds | None = None


class IdleView(Wire):
    """How idle a workload's GPUs are, and what comes of it."""

    since: datetime
    """Measured idle time before now; gaps in measuring left out."""
    text: str
    """For its owner: how long, and what comes of it when."""
    told: bool = False
    """Whether its owner has been told in its history."""
    takes: Literal["release", "stop"] | None = None
    """What its project does if it stays idle; None: nothing."""
    takes_at: datetime | None = None
    keeps_left: int = 0
    """How often it can still be kept for 30 more minutes."""
    kept: bool = False
    """Whether its owner asked for more time since it is idle."""
    releasing: bool = False
    """Whether its programs are being ended so that its GPUs can go to others."""
    releasable: bool = False
    """Whether its owner may give its GPUs back while it goes on."""
