"""The state that `panel.js` renders, built from an overview; pure, without a clock.

The typed dictionaries are the contract with `panel.js`, which repeats them as JSDoc.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Literal, NotRequired, TypedDict

from runai.hub_service.client import texts
from runai.hub_service.client.array_lines import counts_text, folded, named
from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.wire.schemas import FINISHED, Overview, ProjectView, WorkloadView
from runai.widgets.text import elastic_text, limit_text, why
from runai.widgets.timeline import ChartPoint
from runai.widgets.wording import beside_gpus

MAX_EVENTS = 5
MAX_FINISHED = 5
"""Finished workloads at the end of the table; older ones are left out."""


class Button(TypedDict):
    """A button: its API verb and its label."""

    verb: Literal["suspend", "resume", "delete", "keep", "release", "regain", "scale"]
    label: str
    workers: NotRequired[int]
    """Of `scale`: the new maximum."""


class Row(TypedDict):
    """One workload of the table; amounts in GPUs, None: not measured."""

    id: str
    uid: str
    """Its identity: a button does nothing to a later workload of the same name."""
    name: str
    project: str
    kind: str
    state: str
    gpus: float
    allocated: float
    utilized: float | None
    average: float | None
    reason: str
    pauses: int
    array: bool
    """Whether it is a whole array."""
    exit_code: int | None
    limit: str
    """`soft limit` or `hard limit` on memory; "" if it shares no device."""
    limit_why: str
    idle: str
    """Idle time of its GPUs, and the consequence; "" while they are used."""
    beside: str
    """CPU and memory that it requests; "" if none, or if it has ended."""
    elastic: str
    """Current and most GPUs, and the speed; "" if it is not elastic."""
    progress: str
    """The job's own progress report, "" without one."""
    notice: str
    """The recent action against its use of more memory than its share."""
    simulated: bool
    recent: list[float | None]
    """Recent load of its GPUs, 0..1; None: not measured."""
    actions: list[Button]
    version: str


class Bar(TypedDict):
    """One project's quota bar; `quota` None is unlimited."""

    name: str
    quota: float | None
    quota_parts: str
    """The quotas by GPU type in words; "": it is one number."""
    allocated: float
    sessions: float
    over_quota: float
    utilized: float | None
    waiting: int


class EventLine(TypedDict):
    """An event of a workload: time (Unix seconds), kind, sentence."""

    at: float
    kind: Literal["paused", "resumed", "failed", "idle", "ends_soon", "timed_out"]
    text: str


class Chart(TypedDict):
    """Allocated and utilized GPUs, now and over time; times in Unix seconds."""

    allocated: float
    utilized: float | None

    since: float
    until: float
    step_s: float
    points: list[ChartPoint]
    quota: float | None


class ViewState(TypedDict):
    """The whole content of one view."""

    view: Literal["panel", "quota", "jobs", "status"]
    at: float
    """Time of the overview, in Unix seconds."""
    lost: str
    simulated: bool
    projects: list[Bar]
    workloads: list[Row]
    chart: Chart | None
    notes: list[str]
    told: list[EventLine]
    """Recent events of the workloads, latest first."""


def panel_state(
    overview: Overview, *, user: str, projects: Sequence[str], chart: Chart | None
) -> ViewState:
    """Build the panel: projects, active workloads oldest first, then the last finished ones."""
    own_views = [view for view in folded(overview.workloads) if view.user == user]
    active = [view for view in own_views if view.state not in FINISHED]
    ended = sorted(
        (view for view in own_views if view.state in FINISHED),
        key=lambda view: (view.finished or view.submitted, view.id),
        reverse=True,
    )
    return ViewState(
        view="panel",
        at=overview.at.timestamp(),
        lost="",
        simulated=is_simulated(overview),
        projects=[_bar(project) for project in my_projects(overview, projects)],
        workloads=[_row(view, overview.at) for view in (*active, *ended[:MAX_FINISHED])],
        chart=chart,
        notes=[COMPUTE_IS_SHARED] if any(view.limit for view in active) else [],
        told=_recent_events(overview),
    )


def quota_state(overview: Overview, *, projects: Sequence[str]) -> ViewState:
    """Build the view of quota bars."""
    return ViewState(
        view="quota",
        at=overview.at.timestamp(),
        lost="",
        simulated=is_simulated(overview),
        projects=[_bar(project) for project in my_projects(overview, projects)],
        workloads=[],
        chart=None,
        notes=[],
        told=[],
    )


def jobs_state(
    overview: Overview,
    ids: Sequence[str],
    *,
    before: Sequence[Row],
    left_out: Mapping[str, WorkloadView | None],
    notes: Sequence[str],
) -> ViewState:
    """Build the view of these workloads.

    `left_out` are answers about workloads that the overview lacks (None: deleted). One without an
    answer stays as it was `before`.
    """
    rows = {row["id"]: row for row in before}
    for job_id, view in left_out.items():
        if view is not None:
            rows[job_id] = _row(view, overview.at)
        elif job_id in rows:
            rows[job_id] = _as_deleted(rows[job_id])
    for job_id in ids:
        for view in named(overview.workloads, job_id):
            rows[job_id] = _row(view, overview.at)
    selected = [rows[job_id] for job_id in ids if job_id in rows]
    waiting = any(row["state"] == "queued" for row in selected)
    return ViewState(
        view="jobs",
        at=overview.at.timestamp(),
        lost="",
        simulated=any(row["simulated"] for row in selected),
        projects=[],
        workloads=selected,
        chart=None,
        notes=list(notes) if waiting else [],
        told=_recent_events(overview, set(ids)),
    )


def status_state(overview: Overview, session: str) -> ViewState:
    """Build the one-line status of a session's GPU."""
    return ViewState(
        view="status",
        at=overview.at.timestamp(),
        lost="",
        simulated=is_simulated(overview),
        projects=[],
        workloads=[],
        chart=None,
        notes=[texts.own_line(overview, session=session).text],
        told=[],
    )


def load(row: Row) -> float | None:
    """Return the load of a workload's GPUs, 0..1; None: not measured."""
    if row["utilized"] is None or row["allocated"] <= 0:
        return None
    return round(min(1.0, row["utilized"] / row["allocated"]), 3)


def my_projects(overview: Overview, projects: Sequence[str]) -> list[ProjectView]:
    """Return the user's projects; all projects for an admin without one."""
    own_projects = [project for project in overview.projects if project.name in projects]
    return own_projects or ([] if projects else list(overview.projects))


def my_usage(overview: Overview, user: str) -> tuple[float, float | None]:
    """Return the user's allocated and utilized GPUs; None: not measured."""
    with_gpus = [view for view in overview.workloads if view.user == user and view.allocated]
    measured = [view.measured.utilized for view in with_gpus if view.measured.utilized is not None]
    allocated = sum(view.allocated for view in with_gpus)
    return allocated, sum(measured) if measured or not with_gpus else None


def is_simulated(overview: Overview) -> bool:
    """Return True if any device is simulated."""
    return any(device.simulated for node in overview.nodes for device in node.devices)


def _recent_events(overview: Overview, ids: AbstractSet[str] | None = None) -> list[EventLine]:
    return [
        EventLine(at=event.at.timestamp(), kind=event.kind, text=event.text)
        for event in overview.notifications[:MAX_EVENTS]
        if ids is None or event.workload in ids
    ]


def _bar(project: ProjectView) -> Bar:
    return Bar(
        name=project.name,
        quota=project.quota,
        quota_parts=project.quota_parts(),
        allocated=project.allocated,
        sessions=project.build_allocated,
        over_quota=project.over_quota,
        utilized=project.utilized,
        waiting=project.waiting,
    )


def _row(view: WorkloadView, at: datetime) -> Row:
    return Row(
        id=view.id,
        uid=view.uid,
        name=view.name,
        project=view.project,
        kind=view.kind,
        state=view.state,
        gpus=view.gpus,
        allocated=view.allocated,
        utilized=view.measured.utilized,
        average=view.measured.utilized_average,
        reason=counts_text(view.states) or why(view),
        pauses=view.pauses,
        array=bool(view.states) or (view.array is not None and view.array_index is None),
        exit_code=view.exit_code,
        limit=view.limit.badge if view.limit else "",
        limit_why=limit_text(view.limit) if view.limit else "",
        idle=view.idle.text if view.idle else view.time_warning(at),
        beside="" if view.finished else beside_gpus(view.cpu, view.memory_mib),
        elastic=elastic_text(view),
        progress=view.progress.text if view.progress else "",
        notice=f"{view.name} {view.notice}" if view.notice else "",
        simulated=view.simulated,
        recent=[],
        actions=_actions(view),
        version=view.version,
    )


def _as_deleted(row: Row) -> Row:
    """Return a row without what only a present workload has."""
    return {
        **row,
        "state": "deleted",
        "allocated": 0,
        "utilized": None,
        "reason": "",
        "limit": "",
        "idle": "",
        "beside": "",
        "elastic": "",
        "progress": "",
        "notice": "",
        "actions": [],
    }


def _actions(view: WorkloadView) -> list[Button]:
    """Return the actions that the API accepts from this caller in this state."""
    if not view.manageable:
        return []
    if view.state in FINISHED:
        return [{"verb": "delete", "label": "Delete"}]
    actions: list[Button] = []
    if view.kind == "job" and view.state == "suspended":
        actions.append({"verb": "resume", "label": "Resume"})
    elif view.kind == "job" and view.state != "stopping":
        actions.append({"verb": "suspend", "label": "Suspend"})
    if view.elastic is not None and view.elastic.workers > 1:
        workers = view.elastic.workers
        actions.append({"verb": "scale", "label": "Add a worker", "workers": workers + 1})
        if workers > 2:  # one process alone is a job of another kind
            actions.append({"verb": "scale", "label": "Remove a worker", "workers": workers - 1})
    if view.idle is not None and view.idle.keeps_left:
        actions.append({"verb": "keep", "label": "Keep 30 more minutes"})
    if view.idle is not None and view.idle.releasable:
        actions.append({"verb": "release", "label": "Give GPU back"})
    if view.released is not None and view.state == "running":
        actions.append({"verb": "regain", "label": "Get GPU back"})
    return [*actions, {"verb": "delete", "label": "Stop"}]
