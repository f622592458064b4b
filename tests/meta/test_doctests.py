"""Examples in docstrings are run here: pytest's own collection would import modules twice."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
OF_TORCH, OF_KERAS = [pytest.mark.torch], [pytest.mark.torch, pytest.mark.keras]
FRAMEWORKS = {"runai.elastic.torch": OF_TORCH, "runai.elastic.keras": OF_KERAS}
WITH_EXAMPLES = sorted(
    "runai." + ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
    for package in ("elastic", "embedded", "hub_service", "spawner", "widgets")
    for path in (CHECKOUT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def needs(module: str) -> list[pytest.MarkDecorator]:
    return FRAMEWORKS.get(".".join(module.split(".")[:3]), [])


@pytest.mark.parametrize(
    "module", [pytest.param(module, marks=needs(module)) for module in WITH_EXAMPLES]
)
def test_docstring_examples_produce_the_stated_results(module):
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)

    assert results.attempted > 0
    assert results.failed == 0
