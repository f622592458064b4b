"""The live screen of `runai top`: a headline, the user's status line, one table, and keys.

It follows the service's events, so it redraws only after changes. `top_views` selects and orders
the rows. Enter opens a workload's facts.
"""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from runai.hub_service.cli.output import top_views
from runai.hub_service.cli.output.tables import Column, any_simulated, beside_gpus
from runai.hub_service.cli.output.top_views import SelectedRows, TopOptions, ViewName
from runai.hub_service.client import AsyncClient, texts
from runai.hub_service.wire.errors import RunaiError
from runai.hub_service.wire.printable import for_terminal
from runai.hub_service.wire.schemas import Overview

AVERAGE_EVERY_S: Final = 30
FACTS_EVERY_S: Final = 2
WIDE: Final = 140
"""Terminal width in cells from which the columns of `-o wide` fit."""
SHARE_CELLS: Final = 6
"""Width of `100%*` and a blank, so that bars are aligned."""
BAR_CELLS: Final = 10
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_EMPTY: Final = {
    "nodes": "There are no GPUs to show.",
    "jobs": "Nothing holds GPUs or waits for any. `runai submit` submits a job.",
    "projects": "There are no projects to show.",
}


class WorkloadScreen(ModalScreen[None]):
    """The facts of one workload, as `runai describe` prints them; read again every two seconds."""

    CSS = """
    WorkloadScreen { align: center middle; }
    #facts { width: 90%; height: 90%; border: round $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape,enter", "dismiss", "back")]

    def __init__(self, client: AsyncClient, workload: str) -> None:
        """Show a workload by its id."""
        super().__init__()
        self._client, self._workload = client, workload

    def compose(self) -> ComposeResult:
        """Yield the facts, which scroll."""
        with VerticalScroll(id="facts") as facts:
            facts.border_title = Text(self._workload)
            yield Static("Asking the service…", id="lines", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Start to read the facts."""
        self.run_worker(self._poll())

    async def _poll(self) -> None:
        while True:
            try:
                detail = await self._client.workload(self._workload)
                why = await self._client.explanation(detail) if detail.is_in_queue else None
            except RunaiError as error:
                text = Text(str(error))
            else:
                text = _lines(texts.described(detail, why, datetime.now(UTC)))
            self.query_one("#lines", Static).update(text)
            await asyncio.sleep(FACTS_EVERY_S)


def _lines(described: list[tuple[str, str]]) -> Text:
    width = max(len(label) for label, _ in described) + 2
    return Text("\n").join(
        Text.assemble((f"{label}:".ljust(width), "bold"), for_terminal(value))
        for label, value in described
    )


class TopScreen(App[None]):
    """Live display of the service until the user presses q. An error ends it and sets `failed`."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #headline { text-style: bold; padding: 0 1; }
    #own, #average, #beside { color: $text-muted; padding: 0 1; }
    #empty { padding: 1 1; color: $text-muted; display: none; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "view('nodes')", "nodes"),
        Binding("j", "view('jobs')", "jobs"),
        Binding("p", "view('projects')", "projects"),
        Binding("i", "idle", "only idle"),
        Binding("s", "sort", "sort by next"),
        Binding("r", "reverse", "reverse"),
        Binding("q,escape", "quit", "quit"),
    ]

    def __init__(self, client: AsyncClient, options: TopOptions) -> None:
        """Show the view `options` of the client's service."""
        super().__init__()
        self._client = client
        self._top_options = options
        self._overview: Overview | None = None
        self._headings: list[str] = []
        self._width = 0
        self._user = ""
        self._session = os.environ.get("RUNAI_WORKLOAD", "")
        self.failed: RunaiError | None = None

    def compose(self) -> ComposeResult:
        """Yield the widgets from top to bottom."""
        yield Static("Asking the service…", id="headline", markup=False)
        yield Static("", id="own", markup=False)
        yield Static("", id="average", markup=False)
        yield Static("", id="beside", markup=False)
        yield Static("", id="empty", markup=False)
        yield DataTable[Text](cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Start to follow the service's events and averages."""
        self.run_worker(self._follow(), exit_on_error=False)
        self.run_worker(self._poll_average(), exit_on_error=False)

    async def on_unmount(self) -> None:
        """Cancel the workers and close the connections."""
        self.workers.cancel_all()
        await self._client.close()

    async def _follow(self) -> None:
        try:
            self._user = (await self._client.whoami()).name
            async for overview in self._client.events():
                self._overview = overview
                self._show()
        except RunaiError as failed:
            self.failed = failed
            self.exit()

    async def _poll_average(self) -> None:
        """Refresh the last hour's average utilization every AVERAGE_EVERY_S."""
        while True:
            try:
                usage = await self._client.usage(since=datetime.now(UTC) - timedelta(hours=1))
            except RunaiError:
                text = ""  # `_follow` reports the error
            else:
                text = f"last hour: {top_views.average(usage)}"
            self.query_one("#average", Static).update(text)
            await asyncio.sleep(AVERAGE_EVERY_S)

    # ---- keys

    def action_view(self, view: ViewName) -> None:
        """Show nodes, jobs or projects."""
        self._change_options(self._top_options.for_view(view))

    def action_idle(self) -> None:
        """Toggle between workloads with idle GPUs and all workloads."""
        options = self._top_options
        self._change_options(options.for_view("jobs").with_idle(only=not options.idle))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._change_options(self._top_options.sorted_after(datetime.now(UTC), wide=self._is_wide))

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._change_options(self._top_options.reversed())

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the clicked column; reverse the order if it is the sort column already."""
        name = str(event.column_key.value)
        options = self._top_options
        options = options.reversed() if options.sort == name else options.sorted_by(name)
        self._change_options(options)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the facts of a workload."""
        if self._top_options.view == "jobs":
            self.push_screen(WorkloadScreen(self._client, str(event.row_key.value)))

    def _change_options(self, options: TopOptions) -> None:
        self._top_options = options
        self._show()

    # ---- the table

    @property
    def _is_wide(self) -> bool:
        return self._top_options.view == "jobs" and self._width >= WIDE

    def on_resize(self, event: Resize) -> None:
        """Show as many columns as fit."""
        self._width = event.size.width
        self._show()

    def _show(self) -> None:
        """Update headline, notes and table from the last overview."""
        if self._overview is None:
            return
        selected = top_views.select_rows(self._overview, self._top_options, datetime.now(UTC))
        text = top_views.headline(self._overview)
        if any_simulated(self._overview.nodes):
            text += " (* simulated)"
        self.query_one("#headline", Static).update(text)
        own = texts.own_line(self._overview, user=self._user, session=self._session)
        self.query_one("#own", Static).update(f"{self._user}: {own.text}")
        requested = beside_gpus(top_views.nodes_of(self._overview, self._top_options))
        beside = self.query_one("#beside", Static)
        beside.display = bool(requested)
        beside.update(requested)
        empty = self.query_one("#empty", Static)
        empty.display = not selected.rows
        text = "No GPU is idle." if self._top_options.idle else _EMPTY[self._top_options.view]
        empty.update(text)
        with self.batch_update():
            self._fill(self.query_one(DataTable), selected)

    def _fill(self, table: DataTable[Text], selected: SelectedRows) -> None:
        """Fill the table; the cursor follows its row to the new position."""
        columns = selected.table.visible_columns(wide=self._is_wide)
        headings = [_heading(c, selected, reverse=self._top_options.reverse) for c in columns]
        cursor_key = (
            table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
            if table.row_count
            else None
        )
        scroll_top = table.scroll_y
        if headings != self._headings:
            table.clear(columns=True)
            for column, heading in zip(columns, headings, strict=True):
                table.add_column(heading, key=column.heading.lower())
            self._headings = headings
        else:
            table.clear()
        keys = selected.keys
        for key, row in zip(keys, selected.rows, strict=True):
            table.add_row(*(_cell(column, row) for column in columns), key=key)
        if cursor_key in keys:
            table.move_cursor(row=keys.index(cursor_key), scroll=False)
        table.scroll_to(y=scroll_top, animate=False)


def _heading(column: Column[Any], selected: SelectedRows, *, reverse: bool) -> str:
    if column.heading != selected.sorted_by:
        return column.heading
    is_descending = (column.key is not None) is not reverse
    return f"{column.heading} {'▼' if is_descending else '▲'}"


def _cell(column: Column[Any], row: Any) -> Text:
    cell = column.cell(row)
    text = cell if isinstance(cell, Text) else Text(cell)
    fraction = column.part(row) if column.part is not None else None
    if fraction is None:
        return text
    return Text.assemble(text, " " * (SHARE_CELLS - len(text)), (_bar(fraction), "cyan"))


def _bar(fraction: float) -> str:
    """Return a bar for a fraction, with a resolution of an eighth of a cell.

    >>> _bar(0.55), _bar(1), _bar(0)
    ('█████▌    ', '██████████', '          ')
    """
    eighths = round(fraction * BAR_CELLS * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(BAR_CELLS)


def run_screen(options: TopOptions) -> None:
    """Show the live screen until the user quits.

    Raises:
        RunaiError: the service rejects the request, or is down for longer than a restart takes.
    """
    screen = TopScreen(AsyncClient.discover(), options)
    screen.run()
    if screen.failed is not None:
        raise screen.failed
