"""Routes of the cluster: caller, overview, event stream, nodes, plan, what-if."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from runai.hub_service.api.auth.authentication import XSRF_HEADER
from runai.hub_service.api.auth.permissions import Action, authorise, is_member
from runai.hub_service.api.middleware.request_bodies import UniqueKeys
from runai.hub_service.api.services.event_stream import with_heartbeats
from runai.hub_service.api.services.explanations import what_if
from runai.hub_service.api.services.platform import Caller, PlatformDep, WatcherDep
from runai.hub_service.api.views.overview_views import overview_view
from runai.hub_service.scheduler.model.plan_json import plan_to_json
from runai.hub_service.scheduler.model.snapshot_json import snapshot_to_json
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.explanation_schemas import PlanQuestion, WhatIf
from runai.hub_service.wire.schemas import Overview, WhoAmI

router = APIRouter(route_class=UniqueKeys, tags=["cluster"])


@router.get("/whoami")
async def whoami(platform: PlatformDep, caller: Caller, response: Response) -> WhoAmI:
    """Return the caller; for a login cookie, a header has the XSRF token for changes."""
    if caller.xsrf:
        response.headers[XSRF_HEADER] = caller.xsrf
    own_projects = [
        name for name, spec in (await platform.project_specs()).items() if is_member(caller, spec)
    ]
    return WhoAmI(
        name=caller.name,
        kind=caller.kind,
        admin=caller.admin,
        groups=sorted(caller.groups),
        projects=own_projects,
        default_project=own_projects[0] if len(own_projects) == 1 else None,
        version=platform.version,
    )


@router.get("/overview")
async def overview(platform: PlatformDep, caller: Caller) -> Overview:
    """Return everything that the caller may see, at one instant."""
    authorise(caller, Action.SEE_CLUSTER)
    return overview_view(await platform.viewer(caller))


_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"description": "Events named `overview`", "content": _EVENTS}},
)
async def events(platform: PlatformDep, watcher: WatcherDep) -> StreamingResponse:
    """Stream an overview at once and after every change, at most once a second."""
    authorise(watcher.actor, Action.SEE_CLUSTER)
    body = with_heartbeats(
        platform.feeds.follow(lambda: watcher.actor), b":\n\n", watcher.check, platform.shutdown
    )
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


@router.get("/nodes")
async def nodes(platform: PlatformDep, caller: Caller) -> list[NodeView]:
    """Return the nodes and their devices."""
    authorise(caller, Action.SEE_CLUSTER)
    return (await platform.viewer(caller, progress_of=())).nodes()


@router.get("/snapshot")
async def snapshot(platform: PlatformDep, caller: Caller) -> dict[str, Any]:
    """Return nodes, projects and policy of the last cycle in the snapshot format.

    It has no workloads and no members: a replay of the past starts from it.
    """
    authorise(caller, Action.READ_PAST)
    last = platform.controller.last.snapshot
    projects = tuple(replace(project, members=()) for project in last.projects)
    return snapshot_to_json(replace(last, projects=projects, workloads=()))


@router.get("/plan")
async def plan(platform: PlatformDep, caller: Caller) -> dict[str, Any]:
    """Return the last plan, without decisions about workloads that the caller may not see."""
    authorise(caller, Action.SEE_CLUSTER)
    viewer = await platform.viewer(caller)
    visible = [record for record in viewer.read_model.workloads if viewer.may_see(record)]
    names, workers = {r.id for r in visible}, {w.name for r in visible for w in r.workers}
    whole = plan_to_json(platform.controller.last.plan)
    decisions = [d for d in whole["decisions"] if d["workload"] in names]
    for decision in decisions:
        if "waits_for" in decision:
            decision["waits_for"] = [w for w in decision["waits_for"] if w in workers]
    return {**whole, "decisions": decisions}


@router.post("/plan")
async def what_if_plan(question: PlanQuestion, platform: PlatformDep, caller: Caller) -> WhatIf:
    """Return which workloads would start, stop or wait after a change; nothing is carried out."""
    authorise(caller, Action.SEE_CLUSTER)
    return await what_if(platform, caller, question)
