"""Texts of a workload's view for lists and details: GPUs, utilization, memory, age, reason.

Command line, notebook and service share them. Pure.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from runai.hub_service.client.array_lines import counts_text
from runai.hub_service.client.status_line import StatusLine, status_line
from runai.hub_service.wire.explanation_schemas import ExplanationView
from runai.hub_service.wire.printable import printable
from runai.hub_service.wire.schemas import Fact, Overview, ReasonView, WorkloadDetail, WorkloadView

SIMULATED_NOTE = (
    "* simulated: derived from the CPU time and memory of the processes that hold the device"
)
"""Meaning of the star behind a utilization."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_MIB_PER_GIB = 1024
_REASON_STATES: Final = frozenset(
    {"queued", "paused", "starting", "stopping", "retrying", "failed", "timed_out"}
)


def gpus(amount: float) -> str:
    """Format an amount of GPUs without needless decimals.

    >>> gpus(2.0), gpus(0.25), gpus(0.1 + 0.2)
    ('2', '0.25', '0.3')
    """
    return f"{round(amount, 3):g}"


def memory(mib: int | None) -> str:
    """Format an amount of memory.

    >>> memory(4096), memory(512), memory(1536), memory(None)
    ('4G', '512M', '1.5G', '-')
    """
    if mib is None:
        return "-"
    return f"{mib}M" if mib < _MIB_PER_GIB else f"{mib / _MIB_PER_GIB:.3g}G"


def share(utilized: float | None, of: float, *, simulated: bool = False) -> str:
    """Format the utilization of an amount of GPUs in percent; a dash if not measured.

    >>> share(0.4, 0.5), share(0.4, 0.5, simulated=True), share(None, 0.5), share(0, 0)
    ('80%', '80%*', '-', '-')
    """
    if utilized is None or not of:
        return "-"
    return f"{100 * utilized / of:.0f}%{'*' if simulated else ''}"


def age(since: datetime | None, now: datetime) -> str:
    """Format the time since a moment in its largest unit.

    >>> from datetime import timedelta, timezone
    >>> now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    >>> [age(now - timedelta(seconds=s), now) for s in (5, 90, 7200, 200_000, -3)]
    ['5s', '1m', '2h', '2d', '0s']
    """
    if since is None:
        return "-"
    seconds = max(0, int((now - since).total_seconds()))
    for unit, length in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def clock(at: datetime | None) -> str:
    """Format a moment in local time."""
    return "-" if at is None else f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def total_request(workload: WorkloadView) -> str:
    """Format a workload's total request; as memory while its part of a GPU is unknown."""
    if workload.gpu_memory_mib is not None and not workload.gpus:
        return memory(workload.gpu_memory_mib)
    return gpus(workload.gpus)


def holding(workload: WorkloadView) -> str:
    """Format a workload's allocation and request, `allocated/requested`."""
    return f"{gpus(workload.allocated)}/{total_request(workload)}"


def devices(workload: WorkloadView) -> str:
    """Format a workload's devices, `node:0,1`."""
    allocated = [
        f"{w.node}:{','.join(str(d.device) for d in w.devices)}"
        for w in workload.workers
        if w.devices
    ]
    return " ".join(dict.fromkeys(allocated)) or "-"


def reason(view: ReasonView | None) -> str:
    """Format a reason and the place in the queue."""
    if view is None:
        return ""
    text = printable(view.text)
    return f"{text.rstrip('.')} (place {view.position} in the queue)" if view.position else text


def shows_reason(view: WorkloadView) -> bool:
    """Return True if a list shows the reason of a workload's state."""
    return view.state in _REASON_STATES or view.released is not None


def cause(view: WorkloadView, now: datetime) -> str:
    """Return why a workload waits, ends or is idle, and its expected start; "" if nothing is."""
    if view.idle is not None:
        return view.idle.text
    if ending := view.time_warning(now):
        return ending
    why = reason(view.reason) if shows_reason(view) else ""
    start = view.expected_start.text if view.expected_start else ""
    return "; ".join(filter(None, [why, start]))


LIST_COLUMNS: Final[Mapping[str, Callable[[WorkloadView, datetime], str]]] = {
    "NAME": lambda w, _: w.name,
    "PROJECT": lambda w, _: w.project,
    "USER": lambda w, _: w.user,
    "STATE": lambda w, _: counts_text(w.states) or w.state.replace("_", " "),
    "GPUS": lambda w, _: holding(w),
    "UTIL": lambda w, _: share(w.measured.utilized, w.allocated, simulated=w.simulated),
    "AGE": lambda w, now: age(w.submitted, now),
    "REASON": cause,
}
"""Columns of a list of workloads, in a terminal and in a notebook: the cells by heading."""


def dry_run_outcome(w: WorkloadView, unchecked: str) -> str:
    """Format the outcome of a dry run; the notes give the reason for a wait."""
    if w.reason is None:
        return "would be submitted" + ("" if unchecked else " and start at once")
    if w.reason.is_making_room and w.expected_start:
        return f"would be submitted; it {w.expected_start.text}"
    when = f", {w.expected_start.text}" if w.expected_start else ""
    return f"would be submitted and wait{when}"


def own_line(overview: Overview, *, user: str = "", session: str = "") -> StatusLine:
    """Return the status line of a session, else of a user."""
    own = [w for w in overview.workloads if w.user == user or w.id == session]
    part = overview.model_copy(update={"workloads": own, "nodes": [], "notifications": []})
    return status_line(part.model_dump(mode="json"), user=user, session=session)


def fact_text(fact: Fact, now: datetime) -> str:
    """Return a fact's text, with its time in local time and how long ago that was."""
    if fact.at is None:
        return fact.text
    distance = f"{age(fact.at, now)} ago" if fact.at <= now else f"in {age(now, fact.at)}"
    return f"{fact.text} {clock(fact.at)} ({distance})".lstrip()


def described(
    detail: WorkloadDetail, explanation: ExplanationView | None, now: datetime
) -> list[tuple[str, str]]:
    """Return labels and texts of a workload's facts, with its wait explained after the reason."""
    lines: list[tuple[str, str]] = []
    for fact in detail.facts:
        lines.append((fact.label, fact_text(fact, now)))
        if fact.label == "Reason" and explanation is not None and explanation.reason is not None:
            lines += _explanation_lines(explanation)
    return lines


def _explanation_lines(explanation: ExplanationView) -> list[tuple[str, str]]:
    """Return the lines that explain a workload's wait, without unknown parts."""
    holders = [
        f"{h.workload or f'a workload of {h.project}'} {gpus(h.gpus)}"
        + (f" until {'about ' if h.is_estimated else ''}{clock(h.until)}" if h.until else "")
        for h in explanation.holders
    ]
    start = explanation.expected_start
    lines = [("Start", start.text if start else "")]
    lines += [("Would help", counterfactual.text) for counterfactual in explanation.counterfactuals]
    lines += [("Ahead", ", ".join(explanation.ahead)), ("Held by", "; ".join(holders))]
    return [(label, text) for label, text in lines if text]
