"""Formatting of values (0.5 GPUs, 80 %, 3m, `*` for simulated devices) and output of tables.

Tables are as wide as needed in a pipe, and wrapped and coloured on a terminal. All content is
text, never markup, since users choose the names.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click
from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runai.hub_service.client import texts
from runai.hub_service.wire.printable import for_terminal, json_for_terminal
from runai.hub_service.wire.schemas import ProjectView

T = TypeVar("T", bound=BaseModel)

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


def quota(amount: float | None) -> str:
    """Format a quota or limit; None is no bound.

    >>> quota(2.5), quota(None)
    ('2.5', 'none')
    """
    return "none" if amount is None else texts.gpus(amount)


def quota_of(project: ProjectView) -> str:
    """Format a project's quota, with its parts if it is given by GPU type: `6 (h100 2, * 4)`."""
    parts = project.quota_parts()
    return f"{quota(project.quota)} ({parts})" if parts else quota(project.quota)


def state(name: str, text: str = "") -> Text:
    """Return a state, or the text of several, in its colour."""
    return Text(text or name.replace("_", " "), style=STATE_STYLES.get(name, ""))


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
