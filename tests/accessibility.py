"""Look for accessibility problems with axe-core, from its npm package.

The package is fetched once by npm into the user's cache; nothing of it is in the repository. Its
script is evaluated in the page as a debugger would, so that the page's own policy stays as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Page

VERSION = "4.14.1"
SCRIPT = Path.home() / ".cache" / "runai" / f"axe-{VERSION}.min.js"
GRAVE = {"serious", "critical"}


@cache
def why_no_axe() -> str:
    """Return why axe-core cannot be had; "" when it is here."""
    if SCRIPT.exists():
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "no npm to fetch axe-core with"
    with TemporaryDirectory() as folder:
        command = [npm, "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", folder]
        fetched = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
        if fetched.returncode:
            return f"npm could not fetch axe-core: {fetched.stderr.strip()[-200:]}"
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as package:
            script = package.extractfile("package/axe.min.js")
            assert script is not None
            SCRIPT.parent.mkdir(parents=True, exist_ok=True)
            fresh = SCRIPT.with_suffix(".new")
            fresh.write_bytes(script.read())
            fresh.replace(SCRIPT)
    return ""


def problems(page: Page, within: str = "html") -> list[str]:
    """Return the serious problems that axe-core finds in a part of the page."""
    page.evaluate(SCRIPT.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("within => axe.run(within)", within)
    return [
        f"{one['id']}: {one['help']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for one in found["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]
