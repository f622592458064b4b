"""The original library's names of gradient accumulation for Keras."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import keras
import runai.ga.keras
from runai.utils.replaced import Replaced

for name in ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam"):
    made = getattr(runai.ga.keras.optimizers, name)(4, learning_rate=0.5)
    assert isinstance(made, getattr(keras.optimizers, name)), name
    assert (made.steps, float(made.learning_rate)) == (4, 0.5), name
    assert keras.optimizers.deserialize(keras.optimizers.serialize(made)).name == made.plain.name
wrapped = runai.ga.keras.optimizers.Optimizer("adam", 2)
assert wrapped.steps == 2
try:
    runai.ga.keras.optimizers.Optimizer("adam", 0)
except ValueError as error:
    assert "at least 1" in str(error)
for name in ("get_gradients", "update", "update_add", "update_sub"):
    try:
        getattr(runai.ga.keras.hooks, name)
    except Replaced as error:
        assert "runai.ga.keras.optimizers.Optimizer" in str(error)
    else:
        raise AssertionError(name)
print("all there")
"""


@pytest.mark.keras
@pytest.mark.torch
def test_every_name_works_or_says_what_does() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env={**os.environ, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.returncode) == ("all there\n", 0), done.stderr
