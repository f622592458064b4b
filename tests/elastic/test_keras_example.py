"""The example of elastic Keras: trains to the end, and is not trained again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/elastic_keras_digits.py"


@pytest.mark.keras
@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("keras")
def test_the_digits_are_learned_and_a_second_start_finds_them_learned(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "KERAS_BACKEND": "torch",
        "OMP_NUM_THREADS": "1",
        "RUNAI_CHECKPOINT_DIR": str(tmp_path),
    }
    said = [
        subprocess.run(
            [sys.executable, "-W", "ignore", EXAMPLE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=540,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    accuracy = [float(out.split("accuracy ")[-1].split()[0]) for out in said]

    assert accuracy[0] > 0.95
    assert accuracy[1] == accuracy[0]
    assert "Epoch 1/" in said[0]
    assert "Epoch" not in said[1]
