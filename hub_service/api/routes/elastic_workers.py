"""Routes for workers of elastic jobs in pods: target, status, end.

A worker's token identifies it: it acts for itself alone.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from runai.hub_service.api.auth.permissions import Action, Actor, authorise
from runai.hub_service.api.services.event_stream import result_before_shutdown
from runai.hub_service.api.services.platform import Caller, Platform, PlatformDep
from runai.hub_service.model.cluster import WorkerMessages
from runai.hub_service.wire.errors import NotFound
from runai.hub_service.wire.reports import EndedReply, EndedReport, StatusReport, TargetReply

router = APIRouter(prefix="/worker", tags=["workers"])

LONGEST_POLL_S = 60.0


@router.get("/target")
async def target(
    platform: PlatformDep,
    caller: Caller,
    seen: Annotated[int, Query(ge=0)] = 0,
    timeout: Annotated[float, Query(ge=0, le=LONGEST_POLL_S)] = 30.0,  # noqa: ASYNC109  the client's
) -> TargetReply:
    """Return the target members as soon as they are newer than the given version (long poll)."""
    next_target = _messages(platform, caller).worker_target(caller.name, seen)
    newer = await result_before_shutdown(platform.shutdown, next_target, timeout)
    return TargetReply() if newer is None else TargetReply.of(newer)


@router.put("/status", status_code=204)
async def status(report: StatusReport, platform: PlatformDep, caller: Caller) -> None:
    """Store a worker's status report."""
    await _messages(platform, caller).store_worker_status(caller.name, report.read(caller.name))


@router.post("/end")
async def end(report: EndedReport, platform: PlatformDep, caller: Caller) -> EndedReply:
    """Return the exit code for a worker's pod, after its program has ended."""
    code = await _messages(platform, caller).worker_ended(caller.name, report.exit_code)
    return EndedReply(exit_code=code)


def _messages(platform: Platform, caller: Actor) -> WorkerMessages:
    """Return the messages of workers if the caller is one, and this platform has any."""
    authorise(caller, Action.TRAIN)
    if platform.workers is None:
        raise NotFound(
            "Workers share a directory with the platform here.",
            hint="docs/dev/elastic.md describes its files.",
        )
    return platform.workers
