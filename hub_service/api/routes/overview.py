"""Routes of the cluster: caller, overview, event stream, nodes, plan, what-if."""

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from runai.hub_service.api.auth.authentication import XSRF_HEADER
from runai.hub_service.api.auth.permissions import Action, authorise, is_member
from runai.hub_service.api.middleware.request_bodies import UniqueKeys
from runai.hub_service.api.services.event_stream import with_signs_of_life
from runai.hub_service.api.services.explanations import what_if
from runai.hub_service.api.services.platform import Caller, On, Watching
from runai.hub_service.api.views.overview_views import overview_view
from runai.hub_service.scheduler.model.plan_json import plan_to_json
from runai.hub_service.scheduler.model.snapshot_json import snapshot_to_json
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.explanation_schemas import PlanQuestion, WhatIf
from runai.hub_service.wire.schemas import Overview, WhoAmI

router = APIRouter(route_class=UniqueKeys, tags=["cluster"])


@router.get("/whoami")
async def whoami(on: On, caller: Caller, response: Response) -> WhoAmI:
    """Return the caller; for a login cookie, a header has the XSRF token for changes."""
    if caller.xsrf:
        response.headers[XSRF_HEADER] = caller.xsrf
    mine = [name for name, spec in (await on.project_specs()).items() if is_member(caller, spec)]
    return WhoAmI(
        name=caller.name,
        kind=caller.kind,
        admin=caller.admin,
        groups=sorted(caller.groups),
        projects=mine,
        default_project=mine[0] if len(mine) == 1 else None,
        version=on.version,
    )


@router.get("/overview")
async def overview(on: On, caller: Caller) -> Overview:
    """Return everything that the caller may see, at one instant."""
    authorise(caller, Action.SEE_CLUSTER)
    return overview_view(await on.viewer(caller))


_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"description": "Events named `overview`", "content": _EVENTS}},
)
async def events(on: On, watching: Watching) -> StreamingResponse:
    """Stream an overview at once and after every change, at most once a second."""
    authorise(watching.actor, Action.SEE_CLUSTER)
    body = with_signs_of_life(
        on.feeds.follow(lambda: watching.actor), b":\n\n", watching.check, on.leaving
    )
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


@router.get("/nodes")
async def nodes(on: On, caller: Caller) -> list[NodeView]:
    """Return the nodes and their devices."""
    authorise(caller, Action.SEE_CLUSTER)
    return (await on.viewer(caller, progress_of=())).nodes()


@router.get("/snapshot")
async def snapshot(on: On, caller: Caller) -> dict[str, Any]:
    """Return nodes, projects and policy of the last cycle in the snapshot format.

    It has no workloads and no members: a replay of the past starts from it.
    """
    authorise(caller, Action.READ_PAST)
    last = on.controller.last.snapshot
    projects = tuple(replace(project, members=()) for project in last.projects)
    return snapshot_to_json(replace(last, projects=projects, workloads=()))


@router.get("/plan")
async def plan(on: On, caller: Caller) -> dict[str, Any]:
    """Return the last plan, without decisions about workloads that the caller may not see."""
    authorise(caller, Action.SEE_CLUSTER)
    viewer = await on.viewer(caller)
    seen = [record for record in viewer.world.workloads if viewer.may_see(record)]
    names, workers = {r.id for r in seen}, {w.name for r in seen for w in r.workers}
    whole = plan_to_json(on.controller.last.plan)
    decisions = [d for d in whole["decisions"] if d["workload"] in names]
    for decision in decisions:
        if "waits_for" in decision:
            decision["waits_for"] = [w for w in decision["waits_for"] if w in workers]
    return {**whole, "decisions": decisions}


@router.post("/plan")
async def ask(question: PlanQuestion, on: On, caller: Caller) -> WhatIf:
    """Return which workloads would start, stop or wait after a change; nothing is carried out."""
    authorise(caller, Action.SEE_CLUSTER)
    return await what_if(on, caller, question)
