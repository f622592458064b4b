"""The documentation site: no warnings, and no requests to other hosts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; dead links, unknown pages and unlinked pages are warnings, so errors."""
    output, cache = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("trees")
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    result = subprocess.run(
        [*sphinx, "-d", str(cache), str(DOCS), str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    assert result.returncode == 0
    return output


@pytest.mark.tier("all")  # Sphinx comes with the tools
def test_every_documentation_page_is_built(site):
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}

    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages <= built


@pytest.mark.tier("all")
def test_documentation_site_loads_no_file_from_external_hosts(site):
    external_file = re.compile(
        r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["'](?:https?:)?//|url\(["']?https?:"""
    )
    found = {
        f"{path.relative_to(site)}: {match.group()}"
        for pattern in ("*.html", "*.css")
        for path in site.rglob(pattern)
        for match in external_file.finditer(path.read_text(encoding="utf-8"))
    }

    assert found == set()


@pytest.mark.tier("all")
def test_documentation_search_finds_pages_for_users_only(site):
    names = re.search(r'"?docnames"?:\s*(\[[^\]]*\])', (site / "searchindex.js").read_text("utf-8"))
    assert names is not None

    indexed_pages = set(json.loads(names[1]))
    assert "tutorials/researcher" in indexed_pages
    assert {name for name in indexed_pages if name.startswith(("adr/", "dev/"))} == set()
