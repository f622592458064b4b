"""The example of elastic Keras."""

from __future__ import annotations

import contextlib
import io
import runpy
import tempfile
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/elastic_keras_digits.py"


def check_the_digits_are_learned_and_a_second_start_finds_them_learned() -> None:
    said = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environ:
        environ.setenv("RUNAI_CHECKPOINT_DIR", folder)
        for _ in range(2):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                runpy.run_path(str(EXAMPLE), run_name="__main__")
            said.append(out.getvalue())
    accuracy = [float(out.split("accuracy ")[-1].split()[0]) for out in said]

    assert accuracy[0] > 0.95
    assert accuracy[1] == accuracy[0]
    assert "Epoch 1/" in said[0]
    assert "Epoch" not in said[1]
