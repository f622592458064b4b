"""The live views: panel, quota bars, session status and submitted jobs, each an anywidget.

The event stream's thread syncs one `state` to `panel.js`, also while a cell runs. Buttons call the
service from the page; outside JupyterHub they send a message to the kernel.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython

from runai.hub_service.client.actions import action_answer, action_call
from runai.hub_service.client.array_lines import named
from runai.hub_service.client.calls import Identified
from runai.hub_service.processes.per_process import CreatorProcess
from runai.hub_service.wire.errors import Conflict, InvalidRequest, NotFound, RunaiError
from runai.hub_service.wire.schemas import (
    FINISHED,
    Overview,
    WhoAmI,
    WorkloadView,
)
from runai.widgets import state as states
from runai.widgets import text
from runai.widgets.link import Link, link
from runai.widgets.live import ConnectionLost, StreamUpdate
from runai.widgets.state import Chart, ViewState
from runai.widgets.timeline import Timeline

HERE = Path(__file__).parent
FILES = ("amounts.js", "nodes.js", "chart.js", "views.js", "liveness.js", "relay.js", "panel.js")
"""In order of imports; only the last module's default export remains."""
LOADS = 40
"""Points of a sparkline: about a minute."""
STEPS = 150
"""Points of the chart: one per about four pixels."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?function|const)", re.MULTILINE)


def page_script(folder: Path) -> str:
    """Join a folder's ES modules into one; all their names are top-level and unique.

    Front ends load the module from text, where relative imports do not resolve.
    """
    joined = "\n".join((folder / name).read_text(encoding="utf-8") for name in FILES)
    return _EXPORT.sub("", _IMPORT.sub("", joined))


class Panel(anywidget.AnyWidget):
    """One live view; it listens until a page removes it, it is closed or `done`.

    A page cannot report while a cell runs, so a view in a kernel listens from the start. In a
    forked child of the kernel, such as a pool's process, a view is its text.
    """

    _esm = page_script(HERE)
    _css = HERE / "panel.css"

    state: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    service = traitlets.Unicode().tag(sync=True)
    relay = traitlets.Bool().tag(sync=True)
    """True if the notebook server relays to the same platform, as the same user."""

    def __init__(
        self,
        here: Link,
        render: Callable[[Overview], ViewState],
        describe: Callable[[Overview], str],
        *,
        lose: Callable[[], None] = lambda: None,
        done: Callable[[ViewState], bool] = lambda _state: False,
    ) -> None:
        """Render the current overview and listen for changes.

        Raises:
            RunaiError: the service does not answer; the cell shows this, not an empty view.
        """
        overview = here.client.overview()
        self._process = CreatorProcess()
        self._recent_loads: dict[str, deque[float | None]] = {}
        state = self._with_recent(render(overview))
        super().__init__(state=state, service=here.page_path, relay=here.was_found)
        self._link = here
        self._render, self._describe, self._on_lost, self._is_done = render, describe, lose, done
        self._latest = overview
        self._stop_listening: Callable[[], None] | None = None
        self.on_msg(self._on_message)
        if in_a_notebook():
            _close_former_views_of_cell(self)
            self._listen()

    def open(self) -> None:
        """Connect to the page; a child of the kernel has none."""
        if not _is_child_of_kernel():
            super().open()

    def close(self) -> None:
        """Stop listening and remove the view from the page; in a child, do nothing."""
        if self._process.is_current:
            self._end_listening()
            super().close()

    def _listen(self) -> None:
        state: Any = self.state
        if self._stop_listening is None and not self._is_done(state):
            self._stop_listening = self._link.live.listen(self._on_stream_update)

    def _end_listening(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def mimebundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the display data: the live view, with text for other front ends."""
        if self.comm is None:
            return {"text/plain": repr(self)}, {}
        bundle = super()._repr_mimebundle_()
        data, metadata = bundle if bundle is not None else ({}, {})
        return {**data, "text/plain": repr(self)}, metadata

    def _repr_mimebundle_(self, **_kwargs: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.mimebundle()

    def __repr__(self) -> str:
        at = self._latest.at.astimezone()
        return f"{self._describe(self._latest)}\nas of {at.day} {at:%b, %H:%M}"

    def _on_stream_update(self, update: StreamUpdate) -> None:
        """Render a newer overview, or show that the connection is lost."""
        if isinstance(update, ConnectionLost):
            self._on_lost()
            self.state = {**self.state, "lost": update.text}
            return
        if update.at < self._latest.at:
            return  # from before the first overview: the stream's latest may be older than a cell
        self._latest = update
        state = self._with_recent(self._render(update))
        with self.hold_sync():
            self.state = dict(state)
        if self._is_done(state):
            self._end_listening()

    def _with_recent(self, state: ViewState) -> ViewState:
        """Append each workload's GPU load to its sparkline."""
        rows = state["workloads"]
        self._recent_loads = {
            row["id"]: self._recent_loads.get(row["id"], deque(maxlen=LOADS)) for row in rows
        }
        for row in rows:
            self._recent_loads[row["id"]].append(states.load(row))
            row["recent"] = list(self._recent_loads[row["id"]])
        return state

    def _on_message(self, _widget: object, content: object, _buffers: object) -> None:
        """Follow what pages show; execute a button's action for one without the service."""
        match content:
            case {"shown": True}:
                self._listen()
            case {"shown": False}:
                self._end_listening()
                self.send({"asks": "shown"})  # another page may show it as well
            case {"verb": _} if isinstance(content, dict):
                self._act(content)

    def _act(self, content: Mapping[str, Any]) -> None:
        """Execute a button's action, and answer the page."""
        try:
            call = action_call(content)
            if call is None:
                return
            result = self._link.client.transport.send(call)
        except RunaiError as error:
            self.send(action_answer(content, error=str(error)))
        else:
            self.send(action_answer(content, result=result))


@dataclass(frozen=True, slots=True)
class _CellViews:
    """Views that one execution of a cell made."""

    execution: str
    views: list[Panel]


_views_of_cells: dict[str, _CellViews] = {}


def _close_former_views_of_cell(view: Panel) -> None:
    """Close the views of a cell's earlier executions: its output has replaced them."""
    parent_message: Mapping[str, Any] = getattr(get_ipython(), "get_parent", dict)()
    cell = parent_message.get("metadata", {}).get("cellId")
    if not cell:
        return  # a front end that does not name its cells; its pages report removed views
    execution = parent_message.get("header", {}).get("msg_id", "")
    earlier = _views_of_cells.get(cell)
    if earlier is not None and earlier.execution == execution:
        earlier.views.append(view)
        return
    _views_of_cells[cell] = _CellViews(execution, [view])
    for former in earlier.views if earlier is not None else ():
        former.close()


def panel(*, minutes: float = 10) -> Panel:
    """Show my projects' quota, my workloads, and a chart of allocated and utilized GPUs; live."""
    here = link()
    caller = here.whoami()
    user, own = caller.name, _own_projects(caller)
    window_s = max(1.0, minutes) * 60
    timeline = _load_usage(here, user, Timeline(window_s, max(1.0, window_s / STEPS)))

    def render(overview: Overview) -> ViewState:
        until, projects = overview.at.timestamp(), own(overview)
        allocated, utilized = states.my_usage(overview, user)
        timeline.push(until, allocated, utilized)
        mine = states.my_projects(overview, projects)
        quotas = [project.quota for project in mine if project.quota is not None]
        chart = Chart(
            allocated=allocated,
            utilized=utilized,
            since=until - window_s,
            until=until,
            step_s=timeline.step_s,
            points=timeline.points(),
            quota=sum(quotas) if len(quotas) == len(mine) else None,
        )
        return states.panel_state(overview, user=user, projects=projects, chart=chart)

    def describe(overview: Overview) -> str:
        mine = [view for view in overview.workloads if view.user == user]
        return f"{_quota_text(overview, own(overview))}\n\n{text.workload_table(mine, overview.at)}"

    return Panel(here, render, describe, lose=timeline.lose)


def quota() -> Panel:
    """Show the quota bars of my projects alone; live."""
    here = link()
    own = _own_projects(here.whoami())
    return Panel(
        here,
        lambda overview: states.quota_state(overview, projects=own(overview)),
        lambda overview: _quota_text(overview, own(overview)),
    )


def _own_projects(caller: WhoAmI) -> Callable[[Overview], Sequence[str]]:
    """Return a function of an overview that names the caller's projects as they are then.

    An overview marks them for tokens that may submit; others keep the projects of the beginning.
    """
    is_marked = not caller.projects

    def own(overview: Overview) -> Sequence[str]:
        nonlocal is_marked
        marked = [project.name for project in overview.projects if project.may_submit]
        is_marked = is_marked or bool(marked)
        return marked if is_marked else caller.projects

    return own


def own_session() -> str:
    """Return this kernel's workload.

    Raises:
        InvalidRequest: the kernel runs outside of a workload.
    """
    if not (workload := os.environ.get("RUNAI_WORKLOAD", "")):
        raise InvalidRequest(
            "This notebook runs without a GPU of the platform.",
            hint="Start its server with one, or submit a job.",
        )
    return workload


def status() -> Panel:
    """Show this session's GPU in one line; live."""
    here, session = link(), own_session()
    return Panel(
        here,
        lambda overview: states.status_state(overview, session),
        lambda overview: states.status_state(overview, session)["notes"][0],
    )


def jobs_view(here: Link, jobs: Sequence[Identified], *, notes: Sequence[str] = ()) -> Panel:
    """Return a live view of workloads; it ends when all are finished or deleted.

    It never shows a later workload of the same name.

    An overview leaves out the ends of long queues and what finished long ago, and may be older than
    the submission: only the service's answer says that a workload is deleted.
    """
    by_id = {job.id: job for job in jobs}
    ids, uids = list(by_id), {job.uid for job in jobs}
    last_rows: list[states.Row] = []
    missing_views: dict[str, WorkloadView | None] = {}  # of those left out; None: deleted

    def is_over(job_id: str) -> bool:
        if job_id not in missing_views:
            return False
        view = missing_views[job_id]
        return view is None or view.state in FINISHED

    def own_views(overview: Overview) -> list[WorkloadView]:
        return [view for view in overview.workloads if "" in uids or view.uid in uids]

    def render(overview: Overview) -> ViewState:
        overview = overview.model_copy(update={"workloads": own_views(overview)})
        missing_ids = [job_id for job_id in ids if not named(overview.workloads, job_id)]
        for job_id in missing_views.keys() - missing_ids:
            del missing_views[job_id]
        for job_id in missing_ids:
            if not is_over(job_id):
                with suppress(RunaiError):  # the next overview asks again
                    missing_views[job_id] = _workload_or_none(here, by_id[job_id])
        state = states.jobs_state(
            overview, ids, before=last_rows, left_out=missing_views, notes=notes
        )
        last_rows[:] = state["workloads"]
        return state

    def describe(overview: Overview) -> str:
        views = [view for job_id in ids for view in named(own_views(overview), job_id)]
        lines = [text.workload_line(view) for view in views]
        return "\n".join([*lines, *notes])

    def is_done(state: ViewState) -> bool:
        ended = {row["id"] for row in state["workloads"] if row["state"] in FINISHED}
        return all(job_id in ended or is_over(job_id) for job_id in ids)

    return Panel(here, render, describe, done=is_done)


def _workload_or_none(here: Link, workload: Identified) -> WorkloadView | None:
    """Return a workload; None: it is deleted, and another one may have its name."""
    try:
        return here.client.workload(workload)
    except (NotFound, Conflict):
        return None


def in_a_notebook() -> bool:
    """Return True in an IPython kernel, where a front end may show a live view."""
    return hasattr(get_ipython(), "kernel") and not _is_child_of_kernel()


def _is_child_of_kernel() -> bool:
    """Return True in a fork of a kernel, which has its parent's shell and must not send by it."""
    session = getattr(getattr(get_ipython(), "kernel", None), "session", None)
    return session is not None and bool(session.pid != os.getpid())


def _load_usage(here: Link, user: str, timeline: Timeline) -> Timeline:
    """Load the service's recorded usage into a timeline; without a record it stays empty."""
    now = datetime.now(UTC)
    try:
        series = here.client.usage(
            user=user,
            since=now - timedelta(seconds=timeline.window_s),
            until=now,
            step_s=max(1, round(timeline.step_s)),
        )
    except RunaiError:
        return timeline
    points = ((point.at.timestamp(), point.allocated, point.utilized) for point in series.points)
    timeline.load(points, series.step_s)
    return timeline


def _quota_text(overview: Overview, projects: Sequence[str]) -> text.Text:
    return text.quota_bars(
        states.my_projects(overview, projects), simulated=states.is_simulated(overview)
    )
