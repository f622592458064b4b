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

DIRECTORY = Path(__file__).parent
MODULES = ("keras_accumulation_checks", "keras_checkpoint_checks", "keras_fit_checks")


def checks_of(*modules: str) -> tuple[str, ...]:
    """Return the names of the modules' checks as `module.check`."""
    return tuple(
        f"{module}.{check}"
        for module in modules
        for check in re.findall(
            r"^def (check_\w+)", (DIRECTORY / f"{module}.py").read_text(), re.MULTILINE
        )
    )


# Checks of code that differs between back ends; the shared code is checked on one back end.
BACK_END_SPECIFIC = {
    "keras_accumulation_checks": (
        "check_four_optimizers_resized_at_each_update_equal_the_full_batch",
        "check_embedding_gradients_accumulate_to_the_whole_batch",
        "check_micro_batch_overflow_skips_the_update_and_halves_the_scale",
        "check_periodic_optimizer_updates_after_every_nth_step",
    ),
    "keras_checkpoint_checks": (
        "check_stopped_training_resumes_in_mid_epoch_with_more_micro_batches",
        "check_several_workers_need_a_supporting_back_end_and_checkpoints",
    ),
    "keras_fit_checks": (
        "check_fit_with_tails_equals_fit_on_full_batches",
        "check_documented_script_runs_unchanged",
        "check_changed_gpu_batch_takes_effect_at_the_next_update",
        "check_data_set_types_make_the_same_updates",
        "check_several_inputs_and_outputs_are_sliced_together",
    ),
}
BACK_END_CHECKS = tuple(
    f"{module}.{check}" for module, checks in BACK_END_SPECIFIC.items() for check in checks
)
BACK_ENDS = {
    # Devices last: in both back ends a process cannot go back to one device.
    "jax": (*BACK_END_CHECKS, *checks_of("keras_devices_checks")),
    "tensorflow": (*BACK_END_CHECKS, *checks_of("keras_devices_checks")),
    "torch": checks_of(
        *("keras_ranks_checks", *MODULES, "keras_shared_code_checks"),
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
    path = os.pathsep.join(filter(None, (str(DIRECTORY.parent), os.environ.get("PYTHONPATH"))))
    process = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            DIRECTORY / "keras_program.py",
            results,
            *BACK_ENDS[back_end],
        ],
        env={**os.environ, "KERAS_BACKEND": back_end, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    outcome_by_check: dict[str, str] = json.loads(results.read_text())
    return outcome_by_check


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keras")


@pytest.mark.keras
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("back_end", "check"), CHECKS)
@pytest.mark.xdist_group("keras")
def test_keras_elastic_training_check_passes_on_each_back_end(
    back_end: str, check: str, folder: Path
) -> None:
    outcome = outcomes(back_end, folder)[check]

    assert outcome == ""
