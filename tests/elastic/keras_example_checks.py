"""The example of elastic Keras."""

from __future__ import annotations

import contextlib
import io
import runpy
import tempfile
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/elastic_keras_digits.py"


def check_digits_example_learns_and_a_rerun_does_not_retrain() -> None:
    outputs = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environ:
        environ.setenv("RUNAI_CHECKPOINT_DIR", folder)
        for _ in range(2):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                runpy.run_path(str(EXAMPLE), run_name="__main__")
            outputs.append(out.getvalue())
    accuracy = [float(out.split("accuracy ")[-1].split()[0]) for out in outputs]

    assert accuracy[0] > 0.95
    assert accuracy[1] == accuracy[0]
    assert "Epoch 1/" in outputs[0]
    assert "Epoch" not in outputs[1]
