"""Elastic training with Keras on each of its back ends: all checks of a back end in one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BACK_ENDS = ("jax", "tensorflow", "torch")
MODULES = ("keras_accumulation_checks", "keras_checkpoint_checks", "keras_fit_checks")
CHECKS = [
    name
    for module in MODULES
    for name in re.findall(r"^def (check_\w+)", (HERE / f"{module}.py").read_text(), re.MULTILINE)
]


@cache
def outcomes(back_end: str, folder: Path) -> dict[str, str]:
    results = folder / f"{back_end}.json"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "keras_program.py", results, *MODULES],
        env={**os.environ, "KERAS_BACKEND": back_end, "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(results.read_text())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keras")


@pytest.mark.keras
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "back_end", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in BACK_ENDS]
)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.xdist_group("keras")
def test_keras(check: str, back_end: str, folder: Path) -> None:
    outcome = outcomes(back_end, folder)[check]

    assert outcome == ""
