"""The examples in the core's docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from runai.hub_service import scheduler

MODULES = [module.name for module in pkgutil.iter_modules(scheduler.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name: str) -> None:
    module = importlib.import_module(f"{scheduler.__name__}.{name}")

    assert doctest.testmod(module).failed == 0
