"""Templates of the pages: the one place where what users have typed becomes markup.

Everything is escaped unless a template says otherwise, and none does. Widths are attributes of SVG
elements: the pages' policy allows no inline style. Used by `page_parts` and `page`.
"""

from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["PAGES", "templates"]

PAGES = files("runai.hub_service.api") / "pages"


@lru_cache
def templates(prefix: str) -> Environment:
    """Return the templates of a service that is served under a prefix."""
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
        "percent": lambda part: f"{100 * max(0.0, min(1.0, part)):.4g}%",
    }
    environment.globals |= {"prefix": prefix, "time": _time}
    return environment


NOTHING = "–"  # noqa: RUF001  a dash where there is no figure


def _gpus(amount: float | None) -> str:
    return "∞" if amount is None else f"{round(amount, 3):g}"


def _measured(amount: float | None) -> str:
    return NOTHING if amount is None else f"{amount:.2f}"


def _hours(amount: float) -> str:
    return f"{amount:.{2 if amount < 1 else 1 if amount < 10 else 0}f}"


def _of(part: float | None, whole: float) -> str:
    return NOTHING if part is None or not whole else f"{100 * part / whole:.0f} %"


def _time(at: datetime) -> Markup:
    """Return a time in UTC, which the page's script turns into the reader's."""
    words = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), words)
