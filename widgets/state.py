"""Turn an overview into the state that the page draws: pure, no widget, no clock.

One dictionary of plain values; `panel.js` renders it and decides nothing. The typed dictionaries
here are the contract between the two, repeated there as JSDoc.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NotRequired, TypedDict

from runai.hub_service.limits.tiers import COMPUTE_IS_SHARED
from runai.hub_service.wire.schemas import Overview, ProjectView, WorkloadView
from runai.widgets.text import elastic_text, limit_text, why
from runai.widgets.timeline import Point
from runai.widgets.wording import gpus, percent

FINISHED = frozenset({"succeeded", "failed", "ended"})
SHOWN_TOLD = 5
SHOWN_FINISHED = 5
"""Finished workloads at the end of the table; older ones only make it long."""


class Action(TypedDict):
    """What a button does: the API's verb and the word on it."""

    verb: Literal["suspend", "resume", "delete", "keep", "release", "regain", "scale"]
    label: str
    workers: NotRequired[int]
    """Of `scale`: how many at most from then on."""


class Row(TypedDict):
    """One workload of the table. GPUs everywhere; None: not measured."""

    id: str
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
    exit_code: int | None
    limit: str
    """`soft limit` or `hard limit` on memory; "" where it shares no device."""
    limit_why: str
    idle: str
    """How long its GPUs are idle and what comes of it; "" while they are used."""
    elastic: str
    """How many GPUs it trains on of how many, and how fast; "" where it is not elastic."""
    progress: str
    """How far it is, as it reports itself; "" where it does not."""
    notice: str
    """What was done lately because it used more memory than its share."""
    simulated: bool
    recent: list[float | None]
    """How busy what it holds was of late, 0..1; None: not measured."""
    actions: list[Action]
    version: str


class Bar(TypedDict):
    """One project's quota bar; `quota` None is unlimited."""

    name: str
    quota: float | None
    allocated: float
    sessions: float
    over_quota: float
    utilized: float | None
    waiting: int


class Told(TypedDict):
    """What happened to a workload: when (Unix seconds), what kind of thing, as a sentence."""

    at: float
    kind: Literal["paused", "resumed", "failed", "idle"]
    text: str


class Chart(TypedDict):
    """Allocated against utilized, now and over time; times in Unix seconds."""

    allocated: float
    utilized: float | None

    since: float
    until: float
    step_s: float
    points: list[Point]
    quota: float | None


class State(TypedDict):
    """All that one view shows."""

    view: Literal["panel", "quota", "jobs", "status"]
    lost: str
    simulated: bool
    projects: list[Bar]
    workloads: list[Row]
    chart: Chart | None
    notes: list[str]
    told: list[Told]
    """What happened to them lately, the latest first."""


def panel_state(
    overview: Overview, *, user: str, projects: Sequence[str], chart: Chart | None
) -> State:
    """Show the user's projects and workloads: what goes on, oldest first, then the latest ends."""
    mine = [view for view in overview.workloads if view.user == user]
    going = [view for view in mine if view.state not in FINISHED]
    ended = sorted(
        (view for view in mine if view.state in FINISHED),
        key=lambda view: (view.finished or view.submitted, view.id),
        reverse=True,
    )
    return State(
        view="panel",
        lost="",
        simulated=is_simulated(overview),
        projects=[_bar(project) for project in my_projects(overview, projects)],
        workloads=[_row(view) for view in (*going, *ended[:SHOWN_FINISHED])],
        chart=chart,
        notes=[COMPUTE_IS_SHARED] if any(view.limit for view in going) else [],
        told=_told(overview),
    )


def quota_state(overview: Overview, *, projects: Sequence[str]) -> State:
    """Show the quota bars alone."""
    return State(
        view="quota",
        lost="",
        simulated=is_simulated(overview),
        projects=[_bar(project) for project in my_projects(overview, projects)],
        workloads=[],
        chart=None,
        notes=[],
        told=[],
    )


def jobs_state(
    overview: Overview, ids: Sequence[str], *, before: Sequence[Row], notes: Sequence[str]
) -> State:
    """Show these workloads; one that was there `before` and is no more is shown as deleted."""
    now = {view.id: view for view in overview.workloads}
    known = {row["id"]: row for row in before}
    rows = [
        _row(now[each]) if each in now else _deleted(known[each])
        for each in ids
        if each in now or each in known
    ]
    waiting = any(row["state"] == "queued" for row in rows)
    return State(
        view="jobs",
        lost="",
        simulated=any(row["simulated"] for row in rows),
        projects=[],
        workloads=rows,
        chart=None,
        notes=list(notes) if waiting else [],
        told=_told(overview, set(ids)),
    )


def status_state(overview: Overview, session: str) -> State:
    """Show one session's GPU in one line."""
    found = next((view for view in overview.workloads if view.id == session), None)
    line = f"{session} is not there any more." if found is None else _status(found)
    return State(
        view="status",
        lost="",
        simulated=is_simulated(overview),
        projects=[],
        workloads=[],
        chart=None,
        notes=[line],
        told=[],
    )


def _status(view: WorkloadView) -> str:
    devices = sorted({share.device for worker in view.workers for share in worker.devices})
    parts = [f"GPU {', '.join(map(str, devices))}" if devices else "no GPU now"]
    parts += [f"{gpus(view.allocated)} allocated"] if devices else []
    if view.utilized is not None:
        parts.append(f"{percent(view.utilized, view.allocated)} utilized")
    if view.memory_used_mib is not None:
        limit = f" of {view.limit.memory_mib / 1024:.1f}" if view.limit else ""
        parts.append(f"{view.memory_used_mib / 1024:.1f}{limit} GiB")
    parts += [view.idle.text] if view.idle else []
    return " · ".join(parts) + (" (simulated)" if view.simulated else "")


def load(row: Row) -> float | None:
    """Return how busy what a workload holds is, 0..1."""
    if row["utilized"] is None or row["allocated"] <= 0:
        return None
    return round(min(1.0, row["utilized"] / row["allocated"]), 3)


def my_projects(overview: Overview, projects: Sequence[str]) -> list[ProjectView]:
    """Return the user's projects; all of them for an admin who is in none."""
    mine = [project for project in overview.projects if project.name in projects]
    return mine or ([] if projects else list(overview.projects))


def my_usage(overview: Overview, user: str) -> tuple[float, float | None]:
    """Return what the user's workloads hold and keep busy now; None: nothing is measured."""
    mine = [view for view in overview.workloads if view.user == user and view.allocated]
    measured = [view.utilized for view in mine if view.utilized is not None]
    allocated = sum(view.allocated for view in mine)
    return allocated, sum(measured) if measured or not mine else None


def is_simulated(overview: Overview) -> bool:
    """Tell whether any device is simulated."""
    return any(device.simulated for node in overview.nodes for device in node.devices)


def _told(overview: Overview, ids: AbstractSet[str] | None = None) -> list[Told]:
    return [
        Told(at=one.at.timestamp(), kind=one.kind, text=one.text)
        for one in overview.notifications[:SHOWN_TOLD]
        if ids is None or one.workload in ids
    ]


def _bar(project: ProjectView) -> Bar:
    return Bar(
        name=project.name,
        quota=project.quota,
        allocated=project.allocated,
        sessions=project.build_allocated,
        over_quota=project.over_quota,
        utilized=project.utilized,
        waiting=project.waiting,
    )


def _row(view: WorkloadView) -> Row:
    return Row(
        id=view.id,
        name=view.name,
        project=view.project,
        kind=view.kind,
        state=view.state,
        gpus=view.gpus,
        allocated=view.allocated,
        utilized=view.utilized,
        average=view.utilized_average,
        reason=why(view),
        pauses=view.pauses,
        exit_code=view.exit_code,
        limit=view.limit.badge if view.limit else "",
        limit_why=limit_text(view.limit) if view.limit else "",
        idle=view.idle.text if view.idle else "",
        elastic=elastic_text(view),
        progress=view.progress.text if view.progress else "",
        notice=f"{view.name} {view.notice}" if view.notice else "",
        simulated=view.simulated,
        recent=[],
        actions=_actions(view),
        version=view.version,
    )


def _deleted(row: Row) -> Row:
    return {
        **row,
        "state": "deleted",
        "allocated": 0,
        "utilized": None,
        "reason": "",
        "limit": "",
        "idle": "",
        "elastic": "",
        "progress": "",
        "notice": "",
        "actions": [],
    }


def _actions(view: WorkloadView) -> list[Action]:
    """Offer what the API would accept from this caller in this state."""
    if not view.mine:
        return []
    if view.state in FINISHED:
        return [{"verb": "delete", "label": "Remove"}]
    actions: list[Action] = []
    if view.kind == "job" and view.state == "suspended":
        actions.append({"verb": "resume", "label": "Resume"})
    elif view.kind == "job" and view.state != "stopping":
        actions.append({"verb": "suspend", "label": "Pause"})
    if view.elastic is not None and view.elastic.workers > 1:
        workers = view.elastic.workers
        actions.append({"verb": "scale", "label": "Add a worker", "workers": workers + 1})
        if workers > 2:  # with one process alone it would be a job of another kind
            actions.append({"verb": "scale", "label": "One worker less", "workers": workers - 1})
    if view.idle is not None and view.idle.keeps_left:
        actions.append({"verb": "keep", "label": "Keep 30 more minutes"})
    if view.idle is not None and view.idle.releasable:
        actions.append({"verb": "release", "label": "Give GPU back"})
    if view.released is not None and view.state == "running":
        actions.append({"verb": "regain", "label": "Get GPU back"})
    return [*actions, {"verb": "delete", "label": "Stop"}]
