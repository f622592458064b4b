"""Pictures of runs: allocation over time, one row per project, quota as a line.

The SVG is written without a library and looks the same everywhere. HTML is the SVG with the
figures below it; resvg (extra `simulate`) renders it as PNG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, gpu_text
from runai.hub_service.simulation.results import Results, as_json
from runai.hub_service.simulation.timeline import AllocationTimeline
from runai.hub_service.wire.errors import InvalidRequest, Unavailable

SUFFIXES: Final = (".svg", ".html", ".png")

_LEFT, _TOP, _ROW_HEIGHT, _GAP, _WIDTH, _BETWEEN = 112, 84, 40, 10, 520, 28
_FONT: Final = "DejaVu Sans, Arial, Helvetica, sans-serif"
_WITHIN, _OVER, _BUSY = "#4c78a8", "#f58518", "#1f3b57"
_LINE, _INK, _FAINT = "#1a1a1a", "#333333", "#e6e6e6"
_DAY, _HOUR, _MINUTE = 86400, 3600, 60
_PLENTY_OF_MARKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunColumn:
    """One run in a picture."""

    title: str
    results: Results
    timeline: AllocationTimeline


@dataclass(frozen=True, slots=True)
class _ChartRow:
    name: str
    bound: int | None
    """Its quota, or the cluster's GPUs, in milli-GPU."""
    levels: tuple[list[float], ...]
    """Average GPUs in each step, for each column."""
    busy: tuple[list[float], ...] = ()
    """Average busy GPUs in each step, for each column; (): not known."""

    @property
    def top(self) -> float:
        """GPUs at the row's upper edge."""
        peak = max((max(level, default=0.0) for level in self.levels), default=0.0)
        return max(peak, (self.bound or 0) / WHOLE_GPU, 1e-9) * 1.05


def write_picture(
    path: Path,
    title: str,
    columns: Sequence[RunColumn],
    quotas: Mapping[str, int | None],
    capacity: int,
) -> None:
    """Write a picture in the format of the file's suffix: .svg, .html or .png.

    Raises:
        InvalidRequest: the suffix is unknown, or the file cannot be written.
        Unavailable: PNG needs resvg, which is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidRequest(
            f"{path} is not a valid name of a picture.", hint=f"End it in {', '.join(SUFFIXES)}."
        )
    svg = render_svg(title, columns, quotas, capacity)
    if suffix == ".png":
        written = _png(svg)
    else:
        written = (_html(title, svg, columns) if suffix == ".html" else svg).encode()
    try:
        path.write_bytes(written)
    except OSError as wrong:
        raise InvalidRequest(f"{path} cannot be written: {wrong.strerror}.") from wrong


def render_svg(
    title: str, columns: Sequence[RunColumn], quotas: Mapping[str, int | None], capacity: int
) -> str:
    """Return an SVG of the runs side by side: the cluster, then each project."""
    chart_rows = [_whole(columns, quotas, capacity), *_chart_rows(columns, quotas)]
    width = _LEFT + len(columns) * (_WIDTH + _BETWEEN)
    height = _TOP + len(chart_rows) * (_ROW_HEIGHT + _GAP) + 34
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" fill="{_INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(12, 24, title, size=16, weight="bold"),
        *_legend(width, shows_busy=bool(chart_rows[0].busy)),
    ]
    for n, chart_row in enumerate(chart_rows):
        y = _TOP + n * (_ROW_HEIGHT + _GAP)
        parts.append(_text(12, y + 17, chart_row.name, size=12, weight="bold"))
        parts.append(_text(12, y + 32, _bound_text(chart_row, is_whole=n == 0), size=11))
    for n, column in enumerate(columns):
        x = _LEFT + n * (_WIDTH + _BETWEEN)
        parts.append(_text(x, _TOP - 26, column.title, size=13, weight="bold"))
        parts.append(_text(x, _TOP - 10, _summary(column.results), size=11))
        for m, chart_row in enumerate(chart_rows):
            y = _TOP + m * (_ROW_HEIGHT + _GAP)
            parts += _render_chart_row(chart_row, n, x, y, is_whole=m == 0)
        parts += _time_axis(column.timeline, x, height - 34)
    return "\n".join([*parts, "</svg>", ""])


def _whole(
    columns: Sequence[RunColumn], quotas: Mapping[str, int | None], capacity: int
) -> _ChartRow:
    levels = []
    for column in columns:
        each = [column.timeline.gpus(name) for name in quotas]
        levels.append([sum(step) for step in zip(*each, strict=True)])
    is_known = all(column.results.utilized_pct is not None for column in columns)
    busy = tuple(column.timeline.busy_gpus() for column in columns) if is_known else ()
    return _ChartRow("all projects", capacity, tuple(levels), busy)


def _chart_rows(columns: Sequence[RunColumn], quotas: Mapping[str, int | None]) -> list[_ChartRow]:
    order = sorted(quotas, key=lambda name: (-(quotas[name] or 0), name))
    chart_rows = [
        _ChartRow(name, quotas[name], tuple(c.timeline.gpus(name) for c in columns))
        for name in order
    ]
    return [chart_row for chart_row in chart_rows if any(any(level) for level in chart_row.levels)]


def _bound_text(chart_row: _ChartRow, *, is_whole: bool) -> str:
    if chart_row.bound is None:
        return "unlimited"
    return f"{gpu_text(chart_row.bound)} GPUs" if is_whole else f"quota {gpu_text(chart_row.bound)}"


def _summary(results: Results) -> str:
    used = results.utilized_pct
    return (
        f"{results.allocated_pct:.1f} % allocated"
        + ("" if used is None else f" · {used:.1f} % utilized")
        + f" · mean wait {results.wait_mean_h:.2f} h · {results.violation_h:.0f} h of broken quota"
    )


def _render_chart_row(chart_row: _ChartRow, n: int, x: int, y: int, *, is_whole: bool) -> list[str]:
    level, top = chart_row.levels[n], chart_row.top
    bound = top if chart_row.bound is None or is_whole else chart_row.bound / WHOLE_GPU
    parts = [f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_ROW_HEIGHT}" fill="{_FAINT}"/>']
    over = any(gpus > bound for gpus in level)
    if over:
        parts.append(_area(level, x, y, top, _OVER))
    parts.append(_area([min(gpus, bound) for gpus in level], x, y, top, _WITHIN))
    if chart_row.busy:
        parts.append(_area(chart_row.busy[n], x, y, top, _BUSY))
    if chart_row.bound is not None:
        at = y + _ROW_HEIGHT * (1 - chart_row.bound / WHOLE_GPU / top)
        parts.append(
            f'<line x1="{x}" y1="{at:.1f}" x2="{x + _WIDTH}" y2="{at:.1f}"'
            f' stroke="{_LINE}" stroke-width="1" stroke-dasharray="4 3"/>'
        )
    return parts


def _area(level: Sequence[float], x: int, y: int, top: float, colour: str) -> str:
    step = _WIDTH / len(level)
    corners = [f"M{x} {y + _ROW_HEIGHT}"]
    for n, gpus in enumerate(level):
        corners.append(f"V{y + _ROW_HEIGHT * (1 - gpus / top):.1f}H{x + (n + 1) * step:.1f}")
    return f'<path d="{"".join(corners)}V{y + _ROW_HEIGHT}Z" fill="{colour}"/>'


def _legend(width: int, *, shows_busy: bool) -> list[str]:
    parts = []
    marks = [(_WITHIN, "within quota"), (_OVER, "over quota")]
    if shows_busy:
        marks.insert(0, (_BUSY, "utilized"))
    x = width - 108 - 116 * len(marks)
    for colour, word in marks:
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, 24, word, size=11))
        x += 116
    line = f'stroke="{_LINE}" stroke-dasharray="4 3"'
    parts.append(f'<line x1="{x}" y1="20" x2="{x + 18}" y2="20" {line}/>')
    parts.append(_text(x + 24, 24, "quota", size=11))
    return parts


def _time_axis(timeline: AllocationTimeline, x: int, y: int) -> list[str]:
    length = timeline.until - timeline.since
    unit, word = next(
        ((u, w) for u, w in ((_DAY, "day"), (_HOUR, "h")) if length >= _PLENTY_OF_MARKS * u),
        (_MINUTE, "min"),
    )
    count = length // unit
    every = max(1, -(-count // 10))
    parts = []
    for mark in range(0, int(count) + 1, every):
        at = x + _WIDTH * mark * unit / length
        parts.append(f'<line x1="{at:.1f}" y1="{y}" x2="{at:.1f}" y2="{y + 5}" stroke="{_INK}"/>')
        label = f"{word} {mark}" if mark == 0 else str(mark)
        parts.append(_text(at + 3, y + 16, label, size=10))
    return parts


def _text(x: float, y: float, text: str, *, size: int, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )


_PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 14px/1.5 {font}; color: {ink}; background: #fff; margin: 2rem; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin-top: 1rem; }}
th, td {{ padding: .2rem .8rem; text-align: right; border-bottom: 1px solid {faint}; }}
th:first-child {{ text-align: left; }}
</style></head><body>
{svg}
<table><tr><th></th>{heads}</tr>
{rows}
</table></body></html>
"""


def _html(title: str, svg: str, columns: Sequence[RunColumn]) -> str:
    figures = [as_json(column.results) for column in columns]
    rows = [
        f"<tr><th>{key}</th>{''.join(f'<td>{_figure(each[key])}</td>' for each in figures)}</tr>"
        for key in figures[0]
    ]
    return _PAGE.format(
        title=escape(title),
        font=_FONT,
        ink=_INK,
        faint=_FAINT,
        svg=svg,
        heads="".join(f"<th>{escape(column.title)}</th>" for column in columns),
        rows="\n".join(rows),
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,}"


def _png(svg: str) -> bytes:
    try:
        import resvg_py  # noqa: PLC0415  an extra
    except ImportError:
        raise Unavailable(
            "PNG pictures need resvg, which is not installed.",
            hint="pip install 'jupyter-runai[simulate]', or name the file .svg or .html",
            code="not_installed",
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2))
