"""How `make docs` builds the site: by Sphinx, as Jupyter's projects are; pages are Markdown."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import Any

project = "jupyter-runai"
author = "The jupyter-runai developers"
copyright = "the jupyter-runai developers, BSD-3-Clause"  # noqa: A001  Sphinx's name
version = release = installed("jupyter-runai")

extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# Blocks without a language are shells, tables and output: not Python, which Sphinx would guess.
highlight_language = "none"

html_theme = "furo"
html_static_path = ["_static"]
html_title = "jupyter-runai"
html_show_sourcelink = False
html_copy_source = False


def setup(app: Any) -> None:  # noqa: ANN401  Sphinx has types, but is no dependency of the checks
    """Leave decisions and developers' pages out of the search: they rank before users' pages."""
    app.connect("builder-inited", _index_pages_of_users)


def _index_pages_of_users(app: Any) -> None:  # noqa: ANN401
    index = getattr(app.builder, "index_page", None)
    if index is not None:
        app.builder.index_page = lambda name, *rest: (
            None if name.startswith(("adr/", "dev/")) else index(name, *rest)
        )
