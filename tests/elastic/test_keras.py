"""Elastic training with Keras on each of its back ends: all checks of a back end in one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
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
def outcomes(back_end: str, folder: Path, *modules: str) -> dict[str, str]:
    results = folder / f"{back_end}-{modules[0]}.json"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "keras_program.py", results, *modules],
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
    outcome = outcomes(back_end, folder, *MODULES)[check]

    assert outcome == ""


@pytest.mark.keras
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "back_end", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in BACK_ENDS[:2]]
)
@pytest.mark.xdist_group("keras")
def test_two_devices_of_one_process_train_as_one_does(back_end: str, folder: Path) -> None:
    found = outcomes(back_end, folder, "keras_devices_checks")

    assert found == {"check_two_devices_train_as_one_does": ""}


@pytest.mark.keras
@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("keras")
def test_two_processes_of_pytorch_train_as_one_does(free_port: Callable[[], int]) -> None:
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    here = {**os.environ, **group, "KERAS_BACKEND": "torch", "PYTHONPATH": str(HERE.parent)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", HERE / "keras_rank_program.py"],
            env={**here, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]

    assert [rank.wait(540) for rank in ranks] == [0, 0]
