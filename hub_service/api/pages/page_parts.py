"""Template values of the pages: bars, project tree, devices, workload timelines.

Pure: the input is filtered for the reader already. First rendering and updates use the same values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from jinja2 import Environment

from runai.hub_service.client.array_lines import folded
from runai.hub_service.wire.device_schemas import DeviceView, NodeView, OthersView
from runai.hub_service.wire.schemas import (
    FINISHED,
    HistoryView,
    Overview,
    ProjectView,
    WorkloadPage,
    WorkloadView,
)

STATES = ("queued", "starting", "running", "stopping", "paused", "suspended", "retrying")
"""Lasting states; all further ones are final."""


@dataclass(frozen=True, slots=True)
class NamedRange:
    """A time range that ends now, by its name in the address."""

    name: str
    words: str
    length: timedelta

    @property
    def seconds(self) -> int:
        """Return its length in seconds."""
        return round(self.length.total_seconds())


RANGES: Mapping[str, NamedRange] = {
    each.name: each
    for each in (
        NamedRange("1h", "the last hour", timedelta(hours=1)),
        NamedRange("24h", "the last 24 hours", timedelta(hours=24)),
        NamedRange("7d", "the last 7 days", timedelta(days=7)),
        NamedRange("30d", "the last 30 days", timedelta(days=30)),
    )
}


class RenderedParts(NamedTuple):
    """HTML of page parts by element id, and the order of the table rows."""

    parts: dict[str, str]
    rows: list[str]


# -- the page "GPUs" -----------------------------------------------------------------------------


def gpus_page(overview: Overview, user: str, listed: WorkloadPage | None = None) -> dict[str, Any]:
    """Return the template values of an overview, with its workloads or the `listed` ones."""
    workloads = folded(overview.workloads) if listed is None else listed.items
    names = {w.id: w for w in overview.workloads}
    devices = [device for node in overview.nodes for device in node.devices]
    busy = [d.utilized for d in devices if d.utilized is not None]
    return {
        "overview": {
            "allocated": sum(d.allocated for d in devices),
            "devices": len(devices),
            "simulated": any(d.simulated for d in devices),
            "utilized": sum(busy) if busy else None,
            "waiting": sum(p.waiting for p in overview.projects if p.parent is None),
            "reclaimed": overview.idle_gpu_hours_reclaimed,
            "notes": overview.notes,
            "notifications": overview.notifications,
        },
        "projects": project_rows(overview.projects, len(devices)),
        "workloads": sorted(workloads, key=lambda w: _order(w, user)),
        "found": "" if listed is None else _matches_text(listed),
        "nodes": [_node(node, names) for node in overview.nodes],
    }


def gpus_parts(
    environment: Environment, overview: Overview, user: str, listed: WorkloadPage | None = None
) -> RenderedParts:
    """Render the parts of the page "GPUs" that change."""
    macros: Any = environment.get_template("parts.html").module
    device: Any = environment.globals["drawn_device"]
    workload: Any = environment.globals["drawn_workload"]
    values = gpus_page(overview, user, listed)
    rows = {f"w:{w.id}": workload(w, own=w.user == user) for w in values["workloads"]}
    parts = {
        "summary": macros.summary(values["overview"]),
        "notes": macros.notes(values["overview"]["notes"]),
        "notifications": macros.notifications(values["overview"]["notifications"]),
        "projects": macros.projects(values["projects"]),
        "nothing": macros.nothing(not rows, listed is not None),
        "found": macros.found(values["found"]),
    }
    for node in values["nodes"]:
        parts[f"loss:{node['name']}"] = macros.loss(node)
        for view, card in zip(node["views"], node["devices"], strict=True):
            parts[f"d:{node['name']}:{card.device}"] = device(view, card, node["name"])
    return RenderedParts(parts | rows, list(rows))


def _matches_text(page: WorkloadPage) -> str:
    """Format the number of matches in each state, and how many are listed."""
    total = sum(page.counts.values())
    counts = ", ".join(f"{many:,} {state}" for state, many in page.counts.items())
    more = f"; the first {len(page.items)} are listed" if total > len(page.items) else ""
    return f"{total:,} match: {counts}{more}." if total else "None match."


def workload_values(workload: WorkloadView) -> dict[str, Any]:
    """Return a workload's fields for a template."""
    return {
        **{name: getattr(workload, name) for name in type(workload).model_fields},
        "finished": workload.state in FINISHED,
    }


def _order(workload: WorkloadView, user: str) -> tuple[bool, bool]:
    """Return a sort key: the reader's own workloads first, finished ones last."""
    return workload.user != user, workload.state in FINISHED


# -- projects ------------------------------------------------------------------------------------


def project_rows(projects: Sequence[ProjectView], capacity: float) -> list[dict[str, Any]]:
    """Return the projects in tree order, with their bars' segments on a common scale."""
    scale = max(
        [capacity, 0.001, *(p.allocated for p in projects), *(p.quota or 0 for p in projects)]
    )
    return [_project_row(p, depth, scale, capacity) for p, depth in _tree(projects)]


def quota_of_all(projects: Sequence[ProjectView]) -> float | None:
    """Sum the root projects' quotas; None if one is unlimited or there are none."""
    names = {project.name for project in projects}
    quotas = [p.quota for p in projects if p.parent not in names]
    bounded = [quota for quota in quotas if quota is not None]
    return sum(bounded) if bounded and len(bounded) == len(quotas) else None


def _tree(
    projects: Sequence[ProjectView], parent: str | None = None, depth: int = 0
) -> Iterator[tuple[ProjectView, int]]:
    """Yield the projects below a parent with their depth, 5 at most; hidden parents are none."""
    names = {project.name for project in projects}
    for project in projects:
        visible_parent = project.parent if project.parent in names else None
        if visible_parent == parent:
            yield project, min(depth, 5)
            yield from _tree(projects, project.name, depth + 1)


def _project_row(project: ProjectView, depth: int, scale: float, capacity: float) -> dict[str, Any]:
    """Return a project's figures, and its bar's segments as parts of the scale."""
    quota = capacity if project.quota is None else project.quota
    over_quota = max(0.0, project.allocated - quota)
    non_preemptible = min(project.build_allocated, project.allocated - over_quota)
    figures = [f"{project.allocated:g} of {'∞' if project.quota is None else f'{project.quota:g}'}"]
    figures += [f"by type {parts}"] if (parts := project.quota_parts()) else []
    figures += [f"{over_quota:g} over quota"] if over_quota else []
    if project.utilized is not None and project.allocated:
        figures.append(f"{100 * project.utilized / project.allocated:.0f} % utilized")
    figures += [f"fair share {project.fair_share:g}"] if project.fair_share else []
    figures += [f"{project.waiting} waiting"] if project.waiting else []
    return {
        "project": project,
        "depth": depth,
        "build": non_preemptible / scale,
        "train": (project.allocated - over_quota - non_preemptible) / scale,
        "over": over_quota / scale,
        "quota": None if project.quota is None else min(0.995, project.quota / scale),
        "fair": min(0.995, project.fair_share / scale) if project.fair_share else None,
        "figures": figures,
    }


# -- devices -------------------------------------------------------------------------------------


class BarSegment(NamedTuple):
    """One allocation's segment of a device bar: offset, width and busy share."""

    at: float
    width: float
    busy: float
    kind: str
    title: str
    workload: str
    gpus: float
    name: str


class DeviceCard(NamedTuple):
    """Template values of a device; equal values render equal markup."""

    device: int
    simulated: bool
    healthy: bool
    fault: str
    figures: tuple[str, ...]
    parts: tuple[BarSegment, ...]
    others: tuple[str, ...]


def _node(node: NodeView, workloads: Mapping[str, WorkloadView]) -> dict[str, Any]:
    devices = [_device(device, workloads) for device in node.devices]
    return {**node.model_dump(exclude={"devices"}), "devices": devices, "views": node.devices}


def _device(device: DeviceView, workloads: Mapping[str, WorkloadView]) -> DeviceCard:
    """Return a device's figures, the segments of its bar, and its other processes."""
    busy = "not measured" if device.utilized is None else f"{100 * device.utilized:.0f} % utilized"
    figures = [f"{device.allocated:g} allocated", busy]
    used = device.memory_used_mib
    if used is not None:
        figures.append(f"{used / 1024:.1f} of {device.memory_mib / 1024:.0f} GiB")
    parts: list[BarSegment] = []
    offset = 0.0
    for allocation in device.allocations:
        workload = workloads.get(allocation.workload)
        utilized = min(allocation.utilized or 0.0, allocation.gpus)
        name = allocation.workload or "another project"
        title = f"{name}: {allocation.gpus:g} allocated, " + (
            "not measured"
            if allocation.utilized is None
            else f"{100 * utilized / allocation.gpus:.0f} % utilized"
        )
        kind = "other" if workload is None else "train" if workload.preemptible else "build"
        label = workload.name if workload else name
        gpus, holder = allocation.gpus, allocation.workload
        parts.append(BarSegment(offset, gpus, utilized, kind, title, holder, gpus, label))
        offset += allocation.gpus
    return DeviceCard(
        device.device,
        device.simulated,
        device.healthy,
        device.fault,
        tuple(figures),
        tuple(parts),
        tuple([_other_processes_text(other) for other in device.others]),
    )


def _other_processes_text(other: OthersView) -> str:
    owner = f" of {other.account}" if other.account else ""
    return f"other processes{owner}: {(other.memory_mib or 0) / 1024:.1f} GiB"


# -- timeline of a workload ----------------------------------------------------------------------


def life(history: Sequence[HistoryView], until: datetime) -> dict[str, Any]:
    """Convert a history to the bands of a timeline: queued, running, paused."""
    states = [event for event in history if event.kind in STATES or event.kind in FINISHED]
    if not states:
        return {"bands": [], "marks": [], "kinds": [], "words": "nothing is known", "stopped": ""}
    start = states[0].at
    ended = states[-1].at if states[-1].kind in FINISHED else until
    length_s = max((ended - start).total_seconds(), 0.001)
    bands: list[dict[str, Any]] = []
    seconds_by_state: dict[str, float] = {}
    ends = [*(event.at for event in states[1:]), ended]
    for event, end in zip(states, ends, strict=True):
        seconds = max(0.0, (end - event.at).total_seconds())
        if event.kind in FINISHED:
            continue
        seconds_by_state[event.kind] = seconds_by_state.get(event.kind, 0.0) + seconds
        bands.append(
            {
                "kind": event.kind,
                "at": (event.at - start).total_seconds() / length_s,
                "width": seconds / length_s,
                "title": f"{event.kind} for {_duration_text(seconds)}",
            }
        )
    stops = [event.text for event in states if event.kind == "stopping"]
    marks = [
        {"at": (event.at - start).total_seconds() / length_s, "title": event.text}
        for event in history
        if event.kind == "resized"
    ]
    words = ", ".join(
        f"{kind} for {_duration_text(seconds)}" for kind, seconds in seconds_by_state.items()
    )
    return {
        "bands": bands,
        "marks": marks,
        "kinds": list(seconds_by_state),
        "words": words,
        "stopped": stops[-1] if stops else "",
    }


def _duration_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
