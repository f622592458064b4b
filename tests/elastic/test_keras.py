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
MODULES = ("keras_accumulation_checks", "keras_checkpoint_checks", "keras_fit_checks")
BACK_ENDS = {
    # Devices last: both back ends keep for good that a process has several.
    "jax": (*MODULES, "keras_devices_checks"),
    "tensorflow": (*MODULES, "keras_devices_checks"),
    "torch": ("keras_ranks_checks", *MODULES, "keras_example_checks"),
}
CHECKS = [
    pytest.param(back_end, check, marks=getattr(pytest.mark, back_end))
    for back_end, modules in BACK_ENDS.items()
    for module in modules
    for check in re.findall(r"^def (check_\w+)", (HERE / f"{module}.py").read_text(), re.MULTILINE)
]


@cache
def outcomes(back_end: str, folder: Path) -> dict[str, str]:
    results = folder / f"{back_end}.json"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "keras_program.py", results, *BACK_ENDS[back_end]],
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
@pytest.mark.parametrize(("back_end", "check"), CHECKS)
@pytest.mark.xdist_group("keras")
def test_keras(back_end: str, check: str, folder: Path) -> None:
    outcome = outcomes(back_end, folder)[check]

    assert outcome == ""
