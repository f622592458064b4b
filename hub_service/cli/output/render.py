"""Formatting of values (0.5 GPUs, 80 %, 3m, `*` for simulated devices) and output of tables.

Tables are as wide as needed in a pipe, and wrapped and coloured on a terminal. All content is
text, never markup, since users choose the names.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import click
from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runai.hub_service.wire.printable import for_terminal, json_for_terminal, printable
from runai.hub_service.wire.schemas import ProjectView, ReasonView, WorkloadView

T = TypeVar("T", bound=BaseModel)

SIMULATED_NOTE = (
    "* simulated: derived from the CPU time and memory of the processes that hold the device"
)

_PIPE_WIDTH = 10_000
_GAP = 2
_MIN_FOLD_WIDTH = 20
STATE_STYLES = {
    "running": "green",
    "succeeded": "green",
    "starting": "cyan",
    "queued": "cyan",
    "paused": "yellow",
    "retrying": "yellow",
    "stopping": "yellow",
    "failed": "red",
    "timed_out": "red",
}
"""Colours of states, as on the pages and in the notebook."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_MIB_PER_GIB = 1024


def gpus(amount: float) -> str:
    """Format an amount of GPUs without needless decimals.

    >>> gpus(2.0), gpus(0.25), gpus(0.1 + 0.2)
    ('2', '0.25', '0.3')
    """
    return f"{round(amount, 3):g}"


def quota(amount: float | None) -> str:
    """Format a quota or limit; None is no bound.

    >>> quota(2.5), quota(None)
    ('2.5', 'none')
    """
    return "none" if amount is None else gpus(amount)


def quota_of(project: ProjectView) -> str:
    """Format a project's quota, with its parts if it is given by GPU type: `6 (h100 2, * 4)`."""
    parts = project.quota_parts()
    return f"{quota(project.quota)} ({parts})" if parts else quota(project.quota)


def total_request(workload: WorkloadView) -> str:
    """Format a workload's total request; as memory while its part of a GPU is unknown."""
    if workload.gpu_memory_mib is not None and not workload.gpus:
        return memory(workload.gpu_memory_mib)
    return gpus(workload.gpus)


def holding(workload: WorkloadView) -> str:
    """Format a workload's allocation and request, `allocated/requested`."""
    return f"{gpus(workload.allocated)}/{total_request(workload)}"


def share(utilized: float | None, of: float, *, simulated: bool = False) -> str:
    """Format the utilization of an amount of GPUs in percent; a dash if not measured.

    >>> share(0.4, 0.5), share(0.4, 0.5, simulated=True), share(None, 0.5), share(0, 0)
    ('80%', '80%*', '-', '-')
    """
    if utilized is None or not of:
        return "-"
    return f"{100 * utilized / of:.0f}%{'*' if simulated else ''}"


def memory(mib: int | None) -> str:
    """Format an amount of memory.

    >>> memory(4096), memory(512), memory(1536), memory(None)
    ('4G', '512M', '1.5G', '-')
    """
    if mib is None:
        return "-"
    return f"{mib}M" if mib < _MIB_PER_GIB else f"{mib / _MIB_PER_GIB:.3g}G"


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


def state(name: str, text: str = "") -> Text:
    """Return a state, or the text of several, in its colour."""
    return Text(text or name.replace("_", " "), style=STATE_STYLES.get(name, ""))


def reason(view: ReasonView | None) -> str:
    """Format a reason and the place in the queue."""
    if view is None:
        return ""
    place = f" (place {view.position} in the queue)" if view.position else ""
    return printable(view.text) + place


def devices(workload: WorkloadView) -> str:
    """Format a workload's devices, `node:0,1`."""
    allocated = [
        f"{w.node}:{','.join(str(d.device) for d in w.devices)}"
        for w in workload.workers
        if w.devices
    ]
    return " ".join(dict.fromkeys(allocated)) or "-"


def listed(names: Iterable[str]) -> str:
    """Format names for one cell."""
    return ", ".join(names) or "-"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a printed table, for rows that are printed below it later."""

    columns: Sequence[int]
    widths: Sequence[int]


def show_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    fold: str = "",
    below: Layout | None = None,
) -> Layout:
    """Print a table with a header line, or rows alone `below` an earlier table.

    A narrow terminal wraps the column `fold` and leaves out columns from the right; it cuts none.
    """
    console = _console()
    cells = [[_as_text(cell) for cell in row] for row in rows]
    widths = [
        max(cell_len(str(cell)) for cell in column) for column in zip(header, *cells, strict=True)
    ]
    is_first = below is None
    if below is None:
        below = Layout(_fitting(header, widths, console.width, fold), widths)
    visible = below.columns
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
        header_style="bold",
        show_header=is_first,
    )
    for index in visible:
        wraps = header[index] == fold or not index  # the first has the name, whole on its lines
        aligned = not is_first and header[index] != fold
        min_width = min(below.widths[index], console.width) if aligned else None
        table.add_column(header[index], no_wrap=not wraps, overflow="fold", min_width=min_width)
    for row in cells:
        table.add_row(*(row[index] for index in visible))
    with console.capture() as printed:
        console.print(table)
    # rich pads cells to the column's width: strip the blanks at each line's end.
    for line in printed.get().splitlines():
        click.echo(line.rstrip())
    return below


def _fitting(header: Sequence[str], widths: Sequence[int], width: int, fold: str) -> list[int]:
    """Return the columns that fit: the first, then as many as there is room for, `fold` at last.

    >>> _fitting(("NAME", "USER", "AGE", "REASON"), (20, 8, 3, 90), 44, "REASON")
    [0, 3]
    >>> _fitting(("NAME", "USER", "AGE", "REASON"), (20, 8, 3, 90), 58, "REASON")
    [0, 1, 2, 3]
    """
    needed = [
        min(own, _MIN_FOLD_WIDTH) if title == fold else own
        for title, own in zip(header, widths, strict=True)
    ]
    visible = list(range(len(header)))
    while sum(needed[index] + _GAP for index in visible) - _GAP > width and len(visible) > 1:
        is_pinned = [header[i] == fold and widths[i] > len(fold) for i in range(len(header))]
        removable = [index for index in visible[1:] if not is_pinned[index]]
        visible.remove(removable[-1] if removable else visible[-1])
    return visible


def _as_text(content: str | Text) -> Text:
    return content if isinstance(content, Text) else Text(for_terminal(content))


def show_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Print `Key: value` lines with aligned values."""
    width = max(len(key) for key, _ in lines) + 1
    for key, value in lines:
        escaped = "\n".join(map(for_terminal, value.split("\n")))
        click.echo(f"{click.style(f'{key}:'.ljust(width), bold=True)} {escaped}")


DATA: Final = frozenset({"json", "yaml"})
"""Values of `-o` for programs."""
TABLES: Final = frozenset({"table", "wide"})


def show_rows(rows: Sequence[T], name: Callable[[T], str], output: str) -> None:
    """Print rows as data; or with `-o name` their names, one in a line for a shell's loop."""
    if output in DATA:
        show_data(rows, output)
    else:
        for row in rows:
            click.echo(for_terminal(name(row)))


def show_data(
    value: BaseModel | Sequence[BaseModel | dict[str, Any]] | dict[str, Any], output: str
) -> None:
    """Print an API reply as `-o json` or `-o yaml`."""
    plain = [_as_dict(v) for v in value] if isinstance(value, Sequence) else _as_dict(value)
    if output == "yaml":
        click.echo(_yaml(plain), nl=False)
    else:
        click.echo(json_for_terminal(plain, indent=2))


def _yaml(plain: Any) -> str:
    """Return YAML that is safe on a terminal: letters, or escapes if a text has any other sign."""
    import yaml  # noqa: PLC0415 - no library of the base install; `output_option` checked it

    text = json.dumps(plain, ensure_ascii=False)
    is_safe = text.isprintable() and _encodes_all()
    # From JSON, so that it has types that YAML knows.
    document: str = yaml.safe_dump(json.loads(text), allow_unicode=is_safe, sort_keys=False)
    return document


def _encodes_all() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _as_dict(value: BaseModel | dict[str, Any]) -> dict[str, Any]:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _console() -> Console:
    terminal = Console(highlight=False, markup=False, emoji=False)
    if terminal.is_terminal:
        return terminal
    return Console(width=_PIPE_WIDTH, highlight=False, markup=False, emoji=False, no_color=True)
