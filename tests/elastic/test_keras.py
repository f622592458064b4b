"""Elastic training with Keras on each back end; one process runs a back end's checks."""

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


def checks_of(*modules: str) -> tuple[str, ...]:
    """Return the names of the modules' checks as `module.check`."""
    return tuple(
        f"{module}.{check}"
        for module in modules
        for check in re.findall(
            r"^def (check_\w+)", (HERE / f"{module}.py").read_text(), re.MULTILINE
        )
    )


# Checks of code that differs between back ends; the shared code is checked on one back end.
OF_ITS_OWN = {
    "keras_accumulation_checks": (
        "check_four_optimizers_resized_at_each_update_equal_the_full_batch",
        "check_embeddings_accumulate_as_others_do",
        "check_an_overflow_in_one_micro_batch_skips_the_update_and_halves_the_scale",
        "check_counted_steps_accumulate_without_being_told",
    ),
    "keras_checkpoint_checks": (
        "check_a_stopped_training_goes_on_within_an_epoch_at_another_number_of_micro_batches",
        "check_several_workers_need_a_back_end_that_has_them_and_a_checkpoint",
    ),
    "keras_fit_checks": (
        "check_fit_with_tails_equals_fit_on_full_batches",
        "check_the_documented_script_runs_unchanged",
        "check_another_gpu_batch_takes_effect_at_the_next_update",
        "check_every_kind_of_data_makes_the_same_updates",
        "check_several_inputs_and_outputs_are_cut_together",
    ),
}
EACH = tuple(f"{module}.{check}" for module, checks in OF_ITS_OWN.items() for check in checks)
BACK_ENDS = {
    # Devices last: in both back ends a process cannot go back to one device.
    "jax": (*EACH, *checks_of("keras_devices_checks")),
    "tensorflow": (*EACH, *checks_of("keras_devices_checks")),
    "torch": checks_of(
        *("keras_ranks_checks", *MODULES, "keras_example_checks"),
        *("keras_names_checks", "keras_reporter_checks"),
    ),
}
CHECKS = [
    pytest.param(
        back_end,
        check,
        id=f"{back_end}-{check.partition('.')[2]}",
        marks=getattr(pytest.mark, back_end),
    )
    for back_end, checks in BACK_ENDS.items()
    for check in checks
]


@cache
def outcomes(back_end: str, folder: Path) -> dict[str, str]:
    results = folder / f"{back_end}.json"
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "keras_program.py", results, *BACK_ENDS[back_end]],
        env={**os.environ, "KERAS_BACKEND": back_end, "PYTHONPATH": path},
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
