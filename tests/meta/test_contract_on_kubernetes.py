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
        module_marks = getattr(module, "pytestmark", [])
        module_marks = module_marks if isinstance(module_marks, list) else [module_marks]
        for name, test in vars(module).items():
            if name.startswith("test_") and "lab" in inspect.signature(test).parameters:
                marks = [*module_marks, *getattr(test, "pytestmark", [])]
                skip_reasons = [mark.args[0] for mark in marks if mark.name == "not_on_kubernetes"]
                found.append("; ".join(skip_reasons))
    return found


def test_kubernetes_page_states_how_many_contract_tests_are_skipped_and_why():
    page = PAGE.read_text(encoding="utf-8")
    all_reasons = reasons()
    run_count = all_reasons.count("")

    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, flags=re.MULTILINE)

    assert f"{run_count} of its {len(all_reasons)} tests" in page
    documented = {reason: int(number) for number, reason in rows}
    assert Counter(documented) == Counter(filter(None, all_reasons))
