"""Look for accessibility problems with axe-core, from its npm package.

The package is fetched once by npm into the user's cache; nothing of it is in the repository. Its
script is evaluated in the page as a debugger would, so that the page's own policy stays as it is.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

from npm_packages import CACHE, why_not_fetched

VERSION = "4.14.1"
SCRIPT = CACHE / f"axe-{VERSION}.min.js"
SERIOUS_IMPACTS = {"serious", "critical"}


def why_no_axe() -> str:
    """Return why axe-core is unavailable; "" if it is here."""
    return why_not_fetched("axe-core", VERSION, "axe.min.js", SCRIPT)


def problems(page: Page, within: str = "html") -> list[str]:
    """Return the serious problems that axe-core finds in a part of the page."""
    page.evaluate(SCRIPT.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("within => axe.run(within)", within)
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:120]} {node.get('failureSummary', '')[:200]}"
        for rule in found["violations"]
        if rule["impact"] in SERIOUS_IMPACTS
        for node in rule["nodes"]
    ]
