"""The status line of a session, or of a user outside of one, from the overview's JSON.

JupyterLab, `runai status` and `%runai_status` show it. Pure, and without pydantic: a shell's
prompt waits for its import.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from runai.hub_service.wire.printable import printable

MAX_OTHER_PROJECTS: Final = 9
"""Further projects in a title; an admin may use them all."""
_MIB_PER_GIB: Final = 1024
_WAITING_STATES: Final = frozenset({"queued", "paused", "retrying"})
_SIGNS: Final = {125: "⅛", 250: "¼", 333: "⅓", 500: "½", 666: "⅔", 667: "⅔", 750: "¾"}
_TAKEN: Final = {"release": "released", "stop": "stopped"}

Level = Literal["none", "waiting", "ok", "idle", "over", "released", "disconnected"]


class StatusLine(NamedTuple):
    """The words of one status line, and their importance."""

    text: str
    """ "½ GPU · 34 % · 3.1 of 8 GiB · vision 2.5 of 2.5 · 2 waiting"."""
    title: str
    """Lines of a tooltip: the session, its reason to wait, the other projects."""
    level: Level


def status_line(
    overview: Mapping[str, Any], *, user: str, session: str = "", now: float | None = None
) -> StatusLine:
    """Return the line of a session, else of a user's GPUs and project.

    `overview` is the JSON of `GET /api/v1/overview`; an empty one means that the service is away.
    `now` is in Unix seconds; None: the overview's time.
    """
    if not overview:
        return StatusLine("disconnected", "The GPU service does not answer.", "disconnected")
    at = _unix(overview["at"]) if now is None else now
    workload = next((w for w in overview["workloads"] if w["id"] == session), None)
    own = [w for w in overview["workloads"] if w["user"] == user]
    projects = _projects(overview, [workload] if workload else own)
    project = projects[0] if projects else None
    level: Level
    if session and workload is None:
        level, parts, title = "none", [f"{session} is not there any more"], []
    elif workload is not None:
        level = _level(workload, project)
        parts, title = _parts(workload, level, at), _title(workload)
    else:
        level, parts, title = _of_user(own, project)
    if project is not None:
        others = len(projects) - 1
        more = f" (+{others} project{'' if others == 1 else 's'})" if others else ""
        parts += [_quota(project) + more]
        parts += [f"{project['waiting']} waiting"] if project["waiting"] else []
        title += [_project_line(each) for each in projects[: MAX_OTHER_PROJECTS + 1]]
    shown = [workload] if workload else own
    simulated = " (simulated)" if any(w["simulated"] and w["allocated"] for w in shown) else ""
    text = printable(" · ".join(filter(None, parts))) + simulated
    return StatusLine(text, "\n".join([*map(printable, title), simulated.strip()]).strip(), level)


def gpu_count(amount: float) -> str:
    """Format an amount of GPUs with its noun, common parts as signs.

    >>> gpu_count(0.5), gpu_count(0.333), gpu_count(0.35), gpu_count(1), gpu_count(1.5)
    ('½ GPU', '⅓ GPU', '0.35 GPU', '1 GPU', '1.5 GPUs')
    """
    sign = _SIGNS.get(round(amount * 1000))
    return f"{sign or f'{round(amount, 3):g}'} GPU{'s' if amount > 1 else ''}"


def _level(w: Mapping[str, Any], project: Mapping[str, Any] | None) -> Level:
    if w["released"] is not None and not w["allocated"]:
        return "released"
    if not w["allocated"]:
        return "waiting" if w["state"] in _WAITING_STATES else "none"
    if w["idle"] is not None:
        return "idle"
    return "over" if w["preemptible"] and project and project["over_quota"] else "ok"


def _parts(w: Mapping[str, Any], level: Level, at: float) -> list[str]:
    """Return what a workload has: its GPUs, their use, and what may happen to them."""
    if level == "released":
        return ["GPU released"]
    if level == "none":
        return ["no GPU"]
    if level == "waiting":
        return [f"waiting for {_amount(w, w['gpus'])}"]
    parts = [_amount(w, w["allocated"])]
    if w["idle"] is not None:
        parts += [_idle_text(w["idle"], at)]
    elif w["measured"]["utilized"] is not None:
        parts += [f"{100 * w['measured']['utilized'] / w['allocated']:.0f} %"]
    parts += [_memory(w)]
    parts += ["over quota, may be paused at any time"] if level == "over" else []
    return [*parts, _ending(w["run_time"], at)]


def _amount(w: Mapping[str, Any], gpus: float) -> str:
    """Return the GPUs of a workload, as its user asked for them."""
    if w["gpu_memory_mib"] is None:
        return gpu_count(gpus) if gpus else "its start"
    memory = f"{_gib(w['gpu_memory_mib'])} of a GPU"
    workers = len(w["workers"])
    return memory if workers <= 1 else f"{workers} x {memory}"


def _memory(w: Mapping[str, Any]) -> str:
    used = w["measured"]["memory_used_mib"]
    if used is None:
        return ""
    limit = w["limit"]["memory_mib"] if w["limit"] else None
    if limit is None or limit == w["gpu_memory_mib"]:  # which the line begins with
        return f"{used / _MIB_PER_GIB:.1f} GiB used"
    return f"{used / _MIB_PER_GIB:.1f} of {_gib(limit)}"


def _idle_text(idle: Mapping[str, Any], at: float) -> str:
    """Return the idle time and the action that follows, shorter than its own text."""
    if idle["releasing"]:
        return str(idle["text"])
    text = f"idle {_minutes(at - _unix(idle['since']))}"
    if idle["takes"] is None or idle["takes_at"] is None:
        return text
    in_s = max(0.0, _unix(idle["takes_at"]) - at)
    return f"{text}, may be {_TAKEN[idle['takes']]} in {_minutes(in_s)}"


def _ending(time: Mapping[str, Any] | None, at: float) -> str:
    """Return the warning before the end of its time; "" before that is due."""
    if time is None or None in {time["ends_at"], time["warns_at"]} or at < _unix(time["warns_at"]):
        return ""
    return f"its time limit ends it in {_minutes(max(0.0, _unix(time['ends_at']) - at))}"


def _title(w: Mapping[str, Any]) -> list[str]:
    """Return a session's name, and why it waits, is idle or may end."""
    reason, start = w["reason"] or {}, w["expected_start"] or {}
    place = f"place {reason['position']} in the queue" if reason.get("position") else ""
    lines = [w["id"], reason.get("text", ""), place, start.get("text", "")]
    notice = f"{w['name']} {w['notice']}" if w["notice"] else ""
    return [*filter(None, [*lines, (w["idle"] or {}).get("text", ""), notice])]


def _of_user(
    own: list[Mapping[str, Any]], project: Mapping[str, Any] | None
) -> tuple[Level, list[str], list[str]]:
    """Return level, parts and title of a user's workloads together."""
    holding = [w for w in own if w["allocated"]]
    waiting = [w for w in own if w["state"] in _WAITING_STATES]
    if not holding:
        return "waiting" if waiting else "none", ["no GPU"], []
    allocated = sum(w["allocated"] for w in holding)
    measured = [w["measured"]["utilized"] for w in holding]
    used = [part for part in measured if part is not None]
    utilized = f"{100 * sum(used) / allocated:.0f} %" if used else ""
    level: Level = "ok"
    if project is not None and project["over_quota"]:
        preemptible = any(w["preemptible"] and w["project"] == project["name"] for w in holding)
        level = "over" if preemptible else "ok"
    over = "over quota, may be paused at any time" if level == "over" else ""
    return level, [gpu_count(allocated), utilized, over], []


def _projects(
    overview: Mapping[str, Any], workloads: list[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the user's projects, the ones of their workloads with most GPUs first."""
    allocated: dict[str, float] = {}
    for w in workloads:
        allocated[w["project"]] = allocated.get(w["project"], 0.0) + w["allocated"]
    projects = [p for p in overview["projects"] if p["may_submit"] or p["name"] in allocated]
    return sorted(projects, key=lambda p: -allocated.get(p["name"], -1.0))


def _quota(project: Mapping[str, Any]) -> str:
    quota = "∞" if project["quota"] is None else f"{round(project['quota'], 3):g}"
    return f"{project['name']} {round(project['allocated'], 3):g} of {quota}"


def _project_line(project: Mapping[str, Any]) -> str:
    over = f"{round(project['over_quota'], 3):g} over quota" if project["over_quota"] else ""
    waiting = f"{project['waiting']} waiting" if project["waiting"] else ""
    return ", ".join(filter(None, [_quota(project), over, waiting]))


def _gib(mib: int) -> str:
    return f"{mib} MiB" if mib < _MIB_PER_GIB else f"{mib / _MIB_PER_GIB:.3g} GiB"


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _unix(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
