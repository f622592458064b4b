"""The documentation lists the contract tests that are not run on Kubernetes, with reasons."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/dev/kubernetes.md"


def reasons() -> list[str]:
    """Return, per contract test, the reason why it is not run on Kubernetes; "" if it is run."""
    found = []
    for path in sorted((TESTS / "contract").glob("test_*.py")):
        module = import_module(f"contract.{path.stem}")
        of_all = getattr(module, "pytestmark", [])
        of_all = of_all if isinstance(of_all, list) else [of_all]
        for name, test in vars(module).items():
            if name.startswith("test_") and "lab" in inspect.signature(test).parameters:
                marks = [*of_all, *getattr(test, "pytestmark", [])]
                said = [mark.args[0] for mark in marks if mark.name == "not_on_kubernetes"]
                found.append("; ".join(said))
    return found


def test_the_page_counts_them():
    page = PAGE.read_text(encoding="utf-8")
    there = reasons()
    run = there.count("")

    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, flags=re.MULTILINE)

    assert f"{run} of its {len(there)} tests" in page
    assert Counter({why: int(number) for number, why in rows}) == Counter(filter(None, there))
