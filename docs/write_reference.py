"""Write the table of routes in docs/reference.md, from OpenAPI.

`make docs` runs it; `tests/meta/test_docs.py` holds the table to the code. Everything around it is
written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from runai.hub_service.api.app import create_app
from runai.hub_service.api.services.platform import Platform

REFERENCE = Path(__file__).parent / "reference.md"


def main() -> None:
    """Put the table of routes between its marks."""
    before, start, rest = REFERENCE.read_text(encoding="utf-8").partition("<!-- routes -->\n")
    _, end, after = rest.partition("<!-- end routes -->")
    rows = [f"| `{route}` | {what} |" for route, what in routes()]
    table = "\n".join(["| route | what it does |", "|---|---|", *rows]) + "\n"
    REFERENCE.write_text(before + start + table + end + after, encoding="utf-8")


def routes() -> Iterator[tuple[str, str]]:
    """Yield every route of the API with the first line of what it does."""
    # Routes need no running service: only its prefix and version are looked at here.
    app = create_app(cast("Platform", SimpleNamespace(prefix="/", version="reference")))
    paths: Mapping[str, Mapping[str, Any]] = app.openapi()["paths"]
    for path, operations in sorted(paths.items()):
        for method, operation in operations.items():
            first_line = operation.get("description", "").partition("\n")[0]
            yield f"{method.upper()} {path.removeprefix('/')}", first_line


if __name__ == "__main__":
    main()
