"""The live views: the panel, the quota bars, and the view of submitted jobs, each one anywidget.

Feeds one `state` (made by `state`) to `panel.js` on the listening thread, so that it goes on while
a cell runs. Buttons reach the service from the page itself; outside JupyterHub they come here.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython

from runai.hub_service.wire.errors import InvalidRequest, RunaiError
from runai.hub_service.wire.schemas import Overview, ScaleRequest
from runai.widgets import state as states
from runai.widgets import text
from runai.widgets.link import Link, link
from runai.widgets.live import Lost, News
from runai.widgets.state import Chart, State
from runai.widgets.timeline import Timeline

HERE = Path(__file__).parent
FILES = ("amounts.js", "nodes.js", "chart.js", "views.js", "panel.js")
"""Each after what it imports; only the last one's default export remains."""
LOADS = 40
"""Points of a sparkline: a minute or so."""
STEPS = 150
"""Points of the chart: one for every four pixels or so."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?function|const)", re.MULTILINE)


def page_script(folder: Path) -> str:
    """Join a folder's ES modules into one, in which every name is top-level and unique.

    A front end loads it from text, where relative imports lead nowhere.
    """
    joined = "\n".join((folder / name).read_text(encoding="utf-8") for name in FILES)
    return _EXPORT.sub("", _IMPORT.sub("", joined))


class Panel(anywidget.AnyWidget):
    """One live view. It listens until it is closed or has nothing left to tell."""

    _esm = page_script(HERE)
    _css = HERE / "panel.css"

    state: "traitlets.Dict[str, Any]" = traitlets.Dict().tag(sync=True)
    service = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        here: Link,
        draw: Callable[[Overview], State],
        say: Callable[[Overview], str],
        *,
        lose: Callable[[], None] = lambda: None,
        done: Callable[[State], bool] = lambda _state: False,
    ) -> None:
        """Show the platform as it is now and listen to what changes.

        Raises:
            RunaiError: the platform cannot be asked; the cell says so better than an empty picture.
        """
        overview = here.client.overview()
        self._loads: dict[str, deque[float | None]] = {}
        first = self._with_recent(draw(overview))
        super().__init__(state=first, service=here.page_path)
        self._link = here
        self._draw, self._say, self._lose, self._done = draw, say, lose, done
        self._latest = overview
        self._leave: Callable[[], None] = lambda: None
        self.on_msg(self._act)
        if not done(first):
            self._leave = here.live.listen(self._hear)

    def close(self) -> None:
        """Stop listening and take the view off the page."""
        self._leave()
        super().close()

    def mimebundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is displayed: the live view, and text where there is no front end for it."""
        bundle = super()._repr_mimebundle_()
        data, metadata = bundle if bundle is not None else ({}, {})
        return {**data, "text/plain": repr(self)}, metadata

    def _repr_mimebundle_(self, **_asked: object) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.mimebundle()

    def __repr__(self) -> str:
        return self._say(self._latest)

    def _hear(self, news: News) -> None:
        if isinstance(news, Lost):
            self._lose()
            self.state = {**self.state, "lost": news.text}
            return
        self._latest = news
        state = self._with_recent(self._draw(news))
        with self.hold_sync():
            self.state = dict(state)
        if self._done(state):
            self._leave()

    def _with_recent(self, state: State) -> State:
        """Add to each workload how busy its GPUs were while this view was open."""
        rows = state["workloads"]
        self._loads = {row["id"]: self._loads.get(row["id"], deque(maxlen=LOADS)) for row in rows}
        for row in rows:
            self._loads[row["id"]].append(states.load(row))
            row["recent"] = list(self._loads[row["id"]])
        return state

    def _act(self, _widget: object, content: object, _buffers: object) -> None:
        """Do what a button asked for, where the page itself cannot reach the service."""
        client = self._link.client
        do: Callable[[], object]
        match content:
            case {
                "verb": "suspend" | "resume" | "delete" | "keep" | "release" | "regain" as verb,
                "workload": str(workload),
            }:
                do = partial(getattr(client, verb), workload)
            case {"verb": "scale", "workload": str(workload), "workers": int(workers)}:
                do = partial(client.scale, workload, ScaleRequest(workers=workers))
            case _:
                return
        try:
            do()
        except RunaiError as error:
            self.send({"workload": workload, "error": str(error)})
        else:
            self.send({"workload": workload, "error": ""})


def panel(*, minutes: float = 10) -> Panel:
    """Show my projects' quota, my workloads, and what was allocated and utilized of late; live."""
    here = link()
    caller = here.whoami()
    user, projects = caller.name, caller.projects
    window_s = max(1.0, minutes) * 60
    timeline = _recorded(here, user, Timeline(window_s, max(1.0, window_s / STEPS)))

    def draw(overview: Overview) -> State:
        until = overview.at.timestamp()
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

    def say(overview: Overview) -> str:
        mine = [view for view in overview.workloads if view.user == user]
        return f"{_quota_text(overview, projects)}\n\n{text.workload_table(mine)}"

    return Panel(here, draw, say, lose=timeline.lose)


def quota() -> Panel:
    """Show the quota bars of my projects alone; live."""
    here = link()
    projects = here.whoami().projects
    return Panel(
        here,
        lambda overview: states.quota_state(overview, projects=projects),
        lambda overview: _quota_text(overview, projects),
    )


def own_session() -> str:
    """Return the workload that this kernel belongs to.

    Raises:
        InvalidRequest: it belongs to none.
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


def jobs_view(here: Link, ids: Sequence[str], *, notes: Sequence[str] = ()) -> Panel:
    """Show some workloads until all of them are finished or deleted."""
    before: list[states.Row] = []

    def draw(overview: Overview) -> State:
        state = states.jobs_state(overview, ids, before=before, notes=notes)
        before[:] = state["workloads"]
        return state

    def say(overview: Overview) -> str:
        lines = [text.workload_line(view) for view in overview.workloads if view.id in ids]
        return "\n".join([*lines, *notes])

    over = states.FINISHED | {"deleted"}
    return Panel(
        here,
        draw,
        say,
        done=lambda state: (
            len(state["workloads"]) == len(ids)
            and all(row["state"] in over for row in state["workloads"])
        ),
    )


def in_a_notebook() -> bool:
    """Tell whether there is a kernel, and so perhaps a front end, to show a live view."""
    return hasattr(get_ipython(), "kernel")


def _recorded(here: Link, user: str, timeline: Timeline) -> Timeline:
    """Start from what the service has recorded; without a record the chart starts now."""
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
