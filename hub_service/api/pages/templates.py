"""Templates of the pages: the one place where what users have typed becomes markup.

Everything is escaped unless a template says otherwise, and none does. Widths are attributes of SVG
elements: the pages' policy allows no inline style but our own two files, each by its hash; they
travel with the page, so that nothing is waited for before the first paint. Used by `page_parts`,
`page_reply` and `page`.
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from runai.hub_service.api.pages.page_parts import shown_workload
from runai.hub_service.wire.schemas import WorkloadView

PAGES = files("runai.hub_service.api.pages")
_STYLES: Mapping[str, str] = {
    name: (PAGES / name).read_text(encoding="utf-8") for name in ("page.css", "uplot.css")
}
STYLE_HASHES = tuple(
    f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    for text in _STYLES.values()
)
"""What a policy must allow for the pages to have their style."""


DEVICES, WORKLOADS = 2000, 10_000
"""How much markup is kept, of 2 KiB each: nearly all readers see the same rows."""


@lru_cache
def templates(prefix: str) -> Environment:
    """Return the templates of a service that is served under a prefix, all of them compiled.

    Compiled by the first visitor, they would keep them waiting for a tenth of a second.
    """
    environment = Environment(
        loader=FunctionLoader(lambda name: (PAGES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "anchor": lambda label: label.lower().replace(" ", "-"),
        "gpus": _gpus,
        "hours": _hours,
        "measured": _measured,
        "of": _of,
        "path": lambda name: "/".join(quote(part, safe="") for part in name.split("/")),
        "typed": _typed,
        "percent": lambda part: f"{100 * max(0.0, min(1.0, part)):.4g}%",
    }
    environment.globals |= {
        "prefix": prefix,
        "style": lambda name: Markup(_STYLES[name]),  # noqa: S704  ours, typed by nobody
        "time": _time,
    }
    for file in PAGES.iterdir():
        if file.name.endswith(".html"):
            environment.get_template(file.name)
    parts: Any = environment.get_template("parts.html").module

    @lru_cache(WORKLOADS)
    def drawn(shown: _Shown, own: bool) -> Markup:  # noqa: FBT001  by place, as in a template
        row: Markup = parts.workload(shown_workload(shown.view), own)
        return row

    environment.globals |= {
        "drawn_device": lru_cache(DEVICES)(parts.device),
        "drawn_workload": lambda view, own: drawn(_Shown(view), own),
    }
    return environment


class _Shown:
    """A view as a key: it is another object where anything in it is new."""

    __slots__ = ("view",)

    def __init__(self, view: WorkloadView) -> None:
        self.view = view

    def __hash__(self) -> int:
        return id(self.view)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self.view is other.view


NOTHING = "–"  # noqa: RUF001  a dash where there is no figure


def _gpus(amount: float | None) -> str:
    return "∞" if amount is None else f"{round(amount, 3):g}"


def _measured(amount: float | None) -> str:
    return NOTHING if amount is None else f"{amount:.2f}"


def _hours(amount: float) -> str:
    if 0 < amount < 0.1:  # the first minutes; 0.00 of 0.03 would say nothing
        return f"{amount:.3f}" if amount >= 0.001 else "< 0.001"
    return f"{amount:.{2 if amount < 1 else 1 if amount < 10 else 0}f}"


def _of(part: float | None, whole: float) -> str:
    return NOTHING if part is None or not whole else f"{100 * part / whole:.0f} %"


def _typed(sentence: str) -> Markup:
    """Set what one types, which sentences have between backticks, as such."""
    parts = sentence.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _time(at: datetime) -> Markup:
    """Return a time in UTC, which the page's script turns into the reader's."""
    words = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), words)
