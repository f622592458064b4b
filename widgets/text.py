"""The views as plain text: for terminals, consoles, logs and screen readers.

Pure functions from the wire's views to text.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from runai.hub_service.client import texts
from runai.hub_service.client.array_lines import counts_text, folded
from runai.hub_service.limits.tiers import gib
from runai.hub_service.wire.device_schemas import LimitView
from runai.hub_service.wire.explanation_schemas import ExplanationView
from runai.hub_service.wire.schemas import (
    HistoryView,
    ProjectView,
    WorkloadDetail,
    WorkloadView,
)
from runai.widgets.wording import beside_gpus, count, gpus, percent

BAR = 20
"""Width of a quota bar in characters."""


class Text(str):
    """A string that a notebook shows without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Text:
    """Return rows with aligned columns; the last one is not padded.

    >>> table(["NAME", "STATE"], [["a", "running"]])
    NAME  STATE
    a     running
    """
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return Text(
        "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
    )


def why(view: WorkloadView) -> str:
    """Return the reason to wait or stop, and the expected start."""
    start = view.expected_start.text if view.expected_start else ""
    return "; ".join(part for part in (texts.reason(view.reason), start) if part)


def workload_table(views: Sequence[WorkloadView], now: datetime, total: int = 0) -> Text:
    """Return a table as of `runai list`; `total` counts those left out, too."""
    cells = texts.LIST_COLUMNS.values()
    rows = [[cell(view, now) for cell in cells] for view in folded(views)]
    if not rows:
        return Text("No workloads. %runai_submit script.py submits one.")
    simulated = ["", texts.SIMULATED_NOTE] if any(view.simulated for view in views) else []
    missing = total - len(views)
    left_out = [f"{missing:,} more: !runai list --all"] if missing > 0 else []
    return Text("\n".join([table([*texts.LIST_COLUMNS], rows), *simulated, *left_out]))


def workload_line(view: WorkloadView) -> Text:
    """Summarize one workload in a line.

    >>> from datetime import datetime, UTC
    >>> workload_line(WorkloadView(id="a/x", project="a", name="x", user="u", kind="job",
    ...     priority=50, state="running", preemptible=True, gpus=1, allocated=1,
    ...     measured={"utilized": 0.5}, submitted=datetime.now(UTC)))
    a/x: running · 1 GPU allocated · 50 % utilized
    """
    parts: list[str] = [counts_text(view.states) or view.state]
    if view.allocated:
        parts.append(f"{gpus(view.allocated)} GPU{'' if view.allocated == 1 else 's'} allocated")
        if view.measured.utilized is not None:
            parts.append(f"{percent(view.measured.utilized, view.allocated)} utilized")
    elif view.state in {"queued", "paused", "suspended", "retrying"}:
        whole = f"{gpus(view.gpus)} GPU{'' if view.gpus == 1 else 's'}" if view.gpus else ""
        requested = ", ".join(filter(None, [whole, beside_gpus(view.cpu, view.memory_mib)]))
        parts += [f"asks for {requested}"] if requested else []
    if view.exit_code:
        parts.append(f"exit code {view.exit_code}")
    if why := texts.reason(view.reason):
        parts.append(why)
    if view.pauses:
        parts.append(f"paused {count(view.pauses, 'time')} so far")
    if view.simulated:
        parts.append("simulated GPUs")
    return Text(f"{view.id}: " + " · ".join(parts))


def elastic_text(view: WorkloadView) -> str:
    """Return an elastic job's current and most GPUs and its speed; "" if not elastic."""
    if view.elastic is None:
        return ""
    size = "" if view.finished else f"trains on {view.elastic.text}"
    return " · ".join(filter(None, [size, view.elastic.speed]))


def quota_bars(projects: Sequence[ProjectView], *, simulated: bool = False) -> Text:
    """Render each project's quota bar: sessions, jobs, over quota, free."""
    if not projects:
        return Text("You are in no project. Ask an admin to add you to one.")
    scale = max([1.0, *(max(p.quota or 0, p.allocated) for p in projects)])
    width = max(len(p.name) for p in projects)
    lines = [_quota_line(project, scale, width) for project in projects]
    legend = "█ sessions  ▓ jobs  ▒ over quota  · free quota"
    return Text("\n".join([*lines, legend + ("   (simulated GPUs)" if simulated else "")]))


def _quota_line(project: ProjectView, scale: float, width: int) -> str:
    """Render one project's bar and its amounts; `scale` is a full bar in GPUs."""
    within_quota = project.allocated - project.over_quota
    ends = [  # where each part of the bar ends, in GPUs
        ("█", min(project.build_allocated, within_quota)),
        ("▓", within_quota),
        ("▒", project.allocated),
        ("·", max(project.quota or 0, project.allocated)),
    ]
    bar = ""
    for sign, end in ends:
        bar = bar.ljust(round(BAR * min(end, scale) / scale), sign)
    parts = f" ({quota_parts})" if (quota_parts := project.quota_parts()) else ""
    utilized = ""
    if project.utilized is not None and project.allocated:
        utilized = f", {percent(project.utilized, project.allocated)} utilized"
    over = f", {gpus(project.over_quota)} over quota" if project.over_quota else ""
    waiting = f", {count(project.waiting, 'workload')} waiting" if project.waiting else ""
    return (
        f"{project.name.ljust(width)} {bar.ljust(BAR)} {gpus(project.allocated)} allocated"
        f" of {gpus(project.quota)}{parts} quota{over}{utilized}{waiting}"
    )


def describe(detail: WorkloadDetail, explanation: ExplanationView | None = None) -> Text:
    """Describe one workload in full, as `runai describe`."""
    facts = texts.described(detail, explanation, datetime.now(UTC))
    width = max(len(label) for label, _ in facts) + 2
    lines = [f"{label + ':':<{width}}{value}" for label, value in facts]
    workers = [
        f"  {worker.index}  {worker.state}  {worker.node}  "
        + ", ".join(f"{gpus(share.gpus)} of GPU {share.device}" for share in worker.devices)
        for worker in detail.workers
    ]
    history = [_history(line) for line in detail.history]
    source = [f"  {line}" for line in detail.source.splitlines()]
    parts = {"Workers:": workers, "History:": history, "Source:": source}
    for title, content in parts.items():
        lines += [title, *(line.rstrip() for line in content)] if content else []
    return Text("\n".join(lines))


def limit_text(limit: LimitView) -> str:
    """Return the memory limit on a shared device, and how it is enforced."""
    return f"{gib(limit.memory_mib)}: {limit.why}"


def _history(line: HistoryView) -> str:
    return f"  {texts.clock(line.at)}  {line.kind:<10}  {line.text}"
