"""Wire schemas of a workload's idle state and of a project's idle rules. Pure."""

from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

from runai.hub_service.controller.idle.idle_watch import IdleNow
from runai.hub_service.controller.idle.idleness import IdleActionKind, minutes
from runai.hub_service.model.records import MAX_EXTENSIONS, IdleRules
from runai.hub_service.wire.schemas import IdlePut, IdleView

_TAKES: dict[IdleActionKind, Literal["release", "stop"]] = {
    IdleActionKind.RELEASE: "release",
    IdleActionKind.STOP: "stop",
}


def idle_view(now: IdleNow | None, at: float) -> IdleView | None:
    """Return a workload's idle state once it has a badge. Times assume that it stays idle."""
    if now is None or (now.level is None and not now.releasing):
        return None
    takes_at = None if now.in_s is None else datetime.fromtimestamp(at + now.in_s, UTC)
    return IdleView(
        text=_text(now),
        since=datetime.fromtimestamp(at - now.idle_s, UTC).replace(microsecond=0),
        told=now.level is not IdleActionKind.BADGE,
        takes=_TAKES[now.next] if now.next else None,
        takes_at=takes_at.replace(microsecond=0) if takes_at else None,
        keeps_left=now.extensions_left if now.next and not now.releasing else 0,
        kept=now.extensions_left < MAX_EXTENSIONS,
        releasing=now.releasing,
        releasable=now.releasable,
    )


def _text(now: IdleNow) -> str:
    """Format the idle state in minutes, so that the text changes once a minute."""
    if now.releasing:
        return "its programs on the GPU end now, and it goes to others"
    idle = f"idle for {minutes(now.idle_s)}"
    if now.next is None or now.in_s is None:
        return idle
    action = "its GPU goes to others" if now.next is IdleActionKind.RELEASE else "it is stopped"
    return f"{idle}, {action} in {minutes(now.in_s)}"


@lru_cache(maxsize=256)
def idle_rules(rules: IdleRules) -> IdlePut:
    """Convert a project's idle rules to the wire schema; cached, since most are equal."""
    return IdlePut(**asdict(rules))
