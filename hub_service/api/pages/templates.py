"""Jinja templates of the pages: the one place where user input becomes markup.

Everything is escaped; no template opts out. Widths are attributes of SVG elements, since the
content security policy allows no inline style but the two style sheets, each by its hash. They are
part of the page, so that the first paint waits for no request.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote
from weakref import ReferenceType, ref

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from runai.hub_service.api.pages.page_parts import workload_values
from runai.hub_service.client.array_lines import counts_text
from runai.hub_service.wire.amounts import clock_text

PAGES = files("runai.hub_service.api.pages")
_STYLES: Mapping[str, str] = {
    name: (PAGES / name).read_text(encoding="utf-8") for name in ("page.css", "uplot.css")
}
STYLE_HASHES = tuple(
    f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    for text in _STYLES.values()
)
"""Sources of the `style-src` directive that allow the pages' style sheets."""


DEVICES, WORKLOADS = 2000, 10_000
"""Views with cached rows, of 2 KiB each: nearly all readers see the same rows."""


@lru_cache
def templates(prefix: str) -> Environment:
    """Return the compiled templates of a service under a prefix.

    All are compiled at once, so that the first page does not take a tenth of a second longer.
    """
    environment = Environment(
        loader=FunctionLoader(lambda name: (PAGES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "counts": counts_text,
        "anchor": lambda label: label.lower().replace(" ", "-"),
        "clock": clock_text,
        "gpus": _gpus,
        "hours": _hours,
        "measured": _measured,
        "of": _percent_of,
        "path": lambda name: "/".join(quote(part, safe="") for part in name.split("/")),
        "typed": _with_code,
        "percent": lambda part: f"{100 * max(0.0, min(1.0, part)):.4g}%",
    }
    environment.globals |= {
        "prefix": prefix,
        "hub_home": f"{prefix.rpartition('services/')[0] or '/'}hub/home",
        "style": lambda name: Markup(_STYLES[name]),  # noqa: S704  our own files
        "time": _time,
    }
    for file in PAGES.iterdir():
        if file.name.endswith(".html"):
            environment.get_template(file.name)
    parts: Any = environment.get_template("parts.html").module

    devices, workloads = RowCache(DEVICES), RowCache(WORKLOADS)
    cached: dict[str, Any] = {
        "drawn_device": lambda view, card, node: devices.row(
            view, (card, node), lambda: parts.device(card, node)
        ),
        "drawn_workload": lambda view, own: workloads.row(
            view, own, lambda: parts.workload(workload_values(view), own)
        ),
    }
    environment.globals |= cached
    return environment


class RowCache:
    """Rendered rows of views that still exist, by identity: a changed view is a new object.

    Each measurement replaces a running job's view, so a row that outlived its view would never be
    read again.
    """

    def __init__(self, max_rows: int) -> None:
        self._rows: dict[int, tuple[ReferenceType[object], dict[Hashable, Markup]]] = {}
        self._max_rows = max_rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, view: object, variant: Hashable, render: Callable[[], Markup]) -> Markup:
        """Return the cached row of a view in this variant, or render it."""
        key = id(view)
        if key not in self._rows:
            self._rows[key] = ref(view, lambda _reference: self._rows.pop(key, None)), {}
            if len(self._rows) > self._max_rows:
                del self._rows[next(iter(self._rows))]
        rows = self._rows[key][1]
        if variant not in rows:
            rows[variant] = render()
        return rows[variant]


NO_VALUE = "–"  # noqa: RUF001  en dash in place of a missing figure


def _gpus(amount: float | None) -> str:
    return "∞" if amount is None else f"{round(amount, 3):g}"


def _measured(amount: float | None) -> str:
    return NO_VALUE if amount is None else f"{amount:.2f}"


def _hours(amount: float) -> str:
    if 0 < amount < 0.1:  # the first minutes, which would round to 0.00
        return f"{amount:.3f}" if amount >= 0.001 else "< 0.001"
    return f"{amount:.{2 if amount < 1 else 1 if amount < 10 else 0}f}"


def _percent_of(part: float | None, whole: float) -> str:
    return NO_VALUE if part is None or not whole else f"{100 * part / whole:.0f} %"


def _with_code(sentence: str) -> Markup:
    """Mark up text between backticks as code."""
    parts = sentence.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _time(at: datetime) -> Markup:
    """Return a `<time>` element in UTC, which the page's script converts to local time."""
    words = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), words)
