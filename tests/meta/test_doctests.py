"""Examples in docstrings are run here: pytest's own collection would import modules twice."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
TORCH_MARKS, KERAS_MARKS = [pytest.mark.torch], [pytest.mark.torch, pytest.mark.keras]
MARKS_OF_FRAMEWORK = {"runai.elastic.torch": TORCH_MARKS, "runai.elastic.keras": KERAS_MARKS}
MODULES_WITH_EXAMPLES = sorted(
    "runai." + ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
    for package in ("elastic", "embedded", "hub_service", "lab", "spawner", "widgets")
    for path in (CHECKOUT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def required_marks(module: str) -> list[pytest.MarkDecorator]:
    return MARKS_OF_FRAMEWORK.get(".".join(module.split(".")[:3]), [])


@pytest.mark.parametrize(
    "module",
    [pytest.param(module, marks=required_marks(module)) for module in MODULES_WITH_EXAMPLES],
)
def test_docstring_examples_produce_the_stated_results(module):
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0
