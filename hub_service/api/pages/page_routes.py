"""HTML pages, rendered on the server, updated by `page_stream`, behind the hub's login.

They are readable without scripts; buttons and forms call the API. All assets come from this host.
"""

import csv
import io
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from runai.hub_service.api.auth.permissions import Action, Actor, authorise, is_project_admin, may
from runai.hub_service.api.pages.form_fields import NEW_PROJECT, project_fields, request_form_fields
from runai.hub_service.api.pages.page_parts import (
    RANGES,
    NamedRange,
    RenderedParts,
    gpus_page,
    gpus_parts,
    life,
    project_rows,
    quota_of_all,
    workload_values,
)
from runai.hub_service.api.pages.page_reply import packed, page_reply
from runai.hub_service.api.pages.page_stream import part_stream
from runai.hub_service.api.pages.templates import PAGES, templates
from runai.hub_service.api.routes.usage import usage_between, usage_of_each
from runai.hub_service.api.services.explanations import explanation
from runai.hub_service.api.services.platform import Caller, Platform, PlatformDep, WatcherDep
from runai.hub_service.api.views.overview_views import overview_view
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.api.views.workload_facts import workload_facts
from runai.hub_service.api.views.workload_pages import WorkloadListFilter, page_of
from runai.hub_service.ledger import UsageFilter
from runai.hub_service.model.records import WorkloadRecord, WorkloadState, workload_id
from runai.hub_service.wire.base_schema import ProjectName
from runai.hub_service.wire.errors import InvalidRequest, NotFound
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.schemas import WorkloadPage, WorkloadStateName, WorkloadView
from runai.hub_service.wire.usage_schemas import UsageKind

router = APIRouter(include_in_schema=False)

STATIC = {
    **dict.fromkeys(
        ("call.js", "chart.js", "forms.js", "live.js", "logs.js", "uplot.js"), "text/javascript"
    ),
    "gpus.svg": "image/svg+xml",
}
"""Static files of the pages with their media types."""
_KINDS: tuple[tuple[UsageKind, str], ...] = (
    ("project", "Project"),
    ("user", "User"),
    ("node", "Node"),
)

_IN_TITLE = {"Name", "State", "Reason"}
"""Facts that the page has above the others."""
_WAITING = {WorkloadState.QUEUED, WorkloadState.PAUSED, WorkloadState.RETRYING}

RangeName = Annotated[str, Query(alias="range")]
ListFilterDep = Annotated[WorkloadListFilter, Depends()]
MAX_LISTED = 200


class Login(Protocol):
    """Login of a browser through the hub."""

    async def begin_login(self, request: Request, next_path: str) -> Response:
        """Redirect the browser to the hub."""

    async def finish_login(self, request: Request) -> Response:
        """Accept the hub's redirect, and set the login cookie."""


# -- pages ---------------------------------------------------------------------------------------


@router.get("/")
async def gpus(
    request: Request, platform: PlatformDep, filters: ListFilterDep, range_name: RangeName = "24h"
) -> Response:
    """Render the current state of the cluster, with the workloads that match the filter."""
    query = filters.query()

    async def values(caller: Actor) -> dict[str, Any]:
        authorise(caller, Action.SEE_CLUSTER)
        viewer = Viewer(await platform.shared_read_model(), caller)
        overview = overview_view(viewer)
        quota = quota_of_all(overview.projects)
        return {
            "here": "",
            "live": f"gpus?{query}" if query else "gpus",
            "admin": may(caller, Action.SET_PROJECT),
            "which": filters,
            "states": get_args(WorkloadStateName),
            **gpus_page(overview, caller.name, _listed(viewer, filters)),
            **await _chart_values(platform, range_name, "", UsageFilter(), quota),
        }

    return await page_reply(request, platform, "gpus.html", values)


@router.get("/live/gpus")
async def gpus_live(
    request: Request, platform: PlatformDep, watcher: WatcherDep, filters: ListFilterDep
) -> StreamingResponse:
    """Stream the changed parts of that page."""
    authorise(watcher.actor, Action.SEE_CLUSTER)
    environment = templates(platform.prefix)

    async def render() -> RenderedParts:
        viewer = Viewer(await platform.shared_read_model(), watcher.actor)
        overview, listed = overview_view(viewer), _listed(viewer, filters)
        return gpus_parts(environment, overview, watcher.actor.name, listed)

    return part_stream(request, platform, watcher, render)


@router.get("/workloads/{project}/{name}")
async def workload(
    request: Request, project: str, name: str, platform: PlatformDep, range_name: RangeName = "1h"
) -> Response:
    """Render one workload: why it waits or was stopped, its states over time, its output."""
    name = workload_id(project, name)

    async def values(caller: Actor) -> dict[str, Any]:
        record = await platform.access(caller, Action.SEE_WORKLOAD, name)
        query, usage_filter = f"workload={record.id}", UsageFilter(workload=record.id)
        return {
            "here": None,
            "live": f"workloads/{record.id}",
            **await _workload_values(platform, caller, record),
            **await _chart_values(platform, range_name, query, usage_filter, None),
        }

    return await page_reply(request, platform, "workload.html", values)


@router.get("/live/workloads/{project}/{name}")
async def workload_live(
    request: Request, project: str, name: str, platform: PlatformDep, watcher: WatcherDep
) -> StreamingResponse:
    """Stream the changed parts of that page; the stream ends when the workload is deleted."""
    name = workload_id(project, name)
    await platform.access(watcher.actor, Action.SEE_WORKLOAD, name)
    template = templates(platform.prefix).get_template("workload_parts.html")

    async def render() -> RenderedParts:
        record = await platform.access(watcher.actor, Action.SEE_WORKLOAD, name)
        html = template.render(await _workload_values(platform, watcher.actor, record))
        what, cut, after = html.partition('<section id="life"')
        return RenderedParts({"what": what.strip(), "life": cut + after.strip()}, [])

    return part_stream(request, platform, watcher, render)


@router.get("/projects/{name}")
async def project(
    request: Request, name: ProjectName, platform: PlatformDep, range_name: RangeName = "24h"
) -> Response:
    """Render a project, with a form for its admins."""

    async def values(caller: Actor) -> dict[str, Any]:
        authorise(caller, Action.SEE_CLUSTER)
        viewer = await platform.viewer(caller)
        spec = viewer.read_model.spec(name)
        if spec is None:
            raise NotFound(f"There is no project {name}.", code="unknown_project")
        view = viewer.project(spec)
        admin = may(caller, Action.SET_PROJECT)
        family = [p for p in viewer.projects() if name in {p.name, p.parent}]
        family = [p.model_copy(update={"parent": None}) if p.name == name else p for p in family]
        return {
            "here": None,
            "live": "",
            "project": view,
            "rows": project_rows(family, viewer.read_model.capacity / 1000),
            "admin": admin,
            "edits": admin or (is_project_admin(caller, spec) and caller.may_write),
            "fields": project_fields(view, admin=admin),
            **await _chart_values(
                platform, range_name, f"project={name}", UsageFilter(project=name), view.quota
            ),
        }

    return await page_reply(request, platform, "project.html", values)


@router.get("/new-project")
async def new_project(request: Request, platform: PlatformDep) -> Response:
    """Render the form for a new project."""

    async def values(caller: Actor) -> dict[str, Any]:
        authorise(caller, Action.SET_PROJECT)
        return {
            "here": None,
            "live": "",
            "project": NEW_PROJECT,
            "admin": True,
            "edits": True,
            "fields": project_fields(NEW_PROJECT, admin=True),
        }

    return await page_reply(request, platform, "project.html", values)


@router.get("/usage")
async def usage(request: Request, platform: PlatformDep, range_name: RangeName = "24h") -> Response:
    """Render the GPUs that projects, users and nodes held and kept busy."""

    async def values(caller: Actor) -> dict[str, Any]:
        time_range, end = _named_range(range_name), platform.clock()
        start = end - time_range.seconds
        tables = [
            (kind, title, await usage_of_each(platform, caller, kind, start, end))
            for kind, title in _KINDS
        ]
        return {
            "here": "usage",
            "live": "",
            "range": time_range,
            "ranges": list(RANGES),
            "tables": tables,
        }

    return await page_reply(request, platform, "usage.html", values)


@router.get("/usage/{kind}.csv")
async def usage_csv(
    kind: UsageKind, platform: PlatformDep, caller: Caller, range_name: RangeName = "24h"
) -> Response:
    """Return the same table as CSV, for spreadsheets."""
    time_range, end = _named_range(range_name), platform.clock()
    usages = await usage_of_each(platform, caller, kind, end - time_range.seconds, end)
    text = io.StringIO()
    table = csv.writer(text)
    figures = ("allocated_average", "utilized_average", "allocated_gpu_hours", "used_gpu_hours",
               "idle_gpu_hours")  # fmt: skip
    table.writerow([kind, *figures])
    for usage_of in usages:
        table.writerow([_cell(usage_of.name), *(getattr(usage_of, figure) for figure in figures)])
    disposition = f'attachment; filename="usage-{kind}-{time_range.name}.csv"'
    headers = {"Content-Disposition": disposition}
    return Response(text.getvalue(), media_type="text/csv", headers=headers)


@router.get("/submit")
async def submit(request: Request, platform: PlatformDep) -> Response:
    """Render the form for a job."""

    async def values(caller: Actor) -> dict[str, Any]:
        authorise(caller, Action.SEE_CLUSTER)
        own_projects = [p for p in (await platform.viewer(caller)).projects() if p.may_submit]
        projects = [
            {
                "name": p.name,
                "quota": p.quota,
                "free": None if p.quota is None else max(0.0, p.quota - p.allocated),
            }
            for p in own_projects
        ]
        first, more = request_form_fields("kubernetes" if platform.images else "local")
        return {"here": "submit", "live": "", "projects": projects, "first": first, "more": more}

    return await page_reply(request, platform, "submit.html", values)


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    """Return one of the pages' static files."""
    if name not in STATIC:
        raise NotFound(f"There is no file {name}.")
    headers = {"Cache-Control": "max-age=300"}
    return packed(request, (PAGES / name).read_bytes(), STATIC[name], headers)


def login_router(login: Login) -> APIRouter:
    """Return the router with the two routes of the login."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/login")
    async def begin(request: Request, next: str = "") -> Response:  # noqa: A002  its public name
        """Redirect to the hub's login, which returns to `next`, a path below the prefix."""
        return await login.begin_login(request, next)

    @routes.get("/oauth_callback")
    async def finish(request: Request) -> Response:
        """Finish the login after the hub's redirect."""
        return await login.finish_login(request)

    return routes


# -- template values ----------------------------------------------------------------------------


def _listed(viewer: Viewer, filters: WorkloadListFilter) -> WorkloadPage | None:
    """Return the first workloads that match the filter; None without a filter."""
    if filters == WorkloadListFilter():
        return None
    return page_of(viewer, filters.records(viewer), limit=MAX_LISTED, after="")


async def _chart_values(
    platform: Platform, range_name: str, query: str, usage_filter: UsageFilter, quota: float | None
) -> dict[str, Any]:
    """Return a chart's range and headline; the browser fetches its points later."""
    time_range, end = _named_range(range_name), platform.clock()
    return {
        "range": time_range,
        "ranges": list(RANGES),
        "query": query,
        "quota": quota,
        "usage": await usage_between(platform, usage_filter, end - time_range.seconds, end),
    }


async def _workload_values(
    platform: Platform, caller: Actor, record: WorkloadRecord
) -> dict[str, Any]:
    """Return the values of a workload's page; history and output only for its readers."""
    viewer = await platform.viewer(caller)
    spec = viewer.read_model.spec(record.spec.project)
    reads = may(caller, Action.READ_WORKLOAD, spec, record.spec)
    history = await platform.cluster.history(record.id) if reads else []
    now = datetime.fromtimestamp(viewer.read_model.at, UTC)
    view: WorkloadView
    if reads:
        view = detail = viewer.detail(record, history)
        facts, events = detail.facts, detail.history
    else:
        view = viewer.workload(record)
        facts, events = workload_facts(view, now), []
    waits = record.state in _WAITING
    return {
        "workload": workload_values(view),
        "facts": [fact for fact in facts if fact.label not in _IN_TITLE],
        "reads": reads,
        "history": events,
        "life": life(events, now),
        "explanation": await explanation(platform, caller, record) if waits else None,
    }


def _named_range(name: str) -> NamedRange:
    """Return the range of this name; raise InvalidRequest for any other."""
    if name not in RANGES:
        raise InvalidRequest(f"There is no range {name}.", hint=f"Ranges: {', '.join(RANGES)}.")
    return RANGES[name]


def _cell(name: str) -> str:
    """Escape a name that a spreadsheet would evaluate as a formula."""
    escaped = printable(name)
    is_formula = escaped.lstrip(" '").startswith(("=", "+", "-", "@", "\\", "|"))
    return f"'{escaped}" if is_formula else escaped
