"""The example, the original library's names, and the reporter: the same code on each back end."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import runai.ga.keras
import runai.reporter.keras as reporting
from runai.utils.replaced import Replaced

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


def check_original_names_work_or_name_their_replacement() -> None:
    for name in ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam"):
        optimizer = getattr(runai.ga.keras.optimizers, name)(4, learning_rate=0.5)
        restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))

        assert isinstance(optimizer, getattr(keras.optimizers, name)), name
        assert (optimizer.steps, float(optimizer.learning_rate)) == (4, 0.5), name
        assert restored.name == optimizer.plain.name
    assert runai.ga.keras.optimizers.Optimizer("adam", 2).steps == 2
    with pytest.raises(ValueError, match="at least 1"):
        runai.ga.keras.optimizers.Optimizer("adam", 0)
    for name in ("get_gradients", "update", "update_add", "update_sub"):
        with pytest.raises(Replaced, match=r"runai\.ga\.keras\.optimizers\.Optimizer"):
            getattr(runai.ga.keras.hooks, name)


class RecordingReporter:
    """A reporter that records its arguments."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[float]] = {}
        self.parameters: dict[str, list[str]] = {}

    def reportMetric(self, name: str, value: Any) -> None:  # noqa: N802  # the original's name
        self.metrics.setdefault(name, []).append(float(value))

    def reportParameter(self, name: str, value: Any) -> None:  # noqa: N802  # the original's name
        self.parameters.setdefault(name, []).append(str(value))


def train() -> None:
    x = np.arange(24.0).reshape(12, 2)
    y = (x.sum(1) % 3).astype("int32")
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    optimizer = keras.optimizers.Adam(0.25)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, batch_size=6, epochs=2, verbose=0)


def check_autolog_reports_fits_until_disabled() -> None:
    reporter = RecordingReporter()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environ:
        environ.setenv("RUNAI_CHECKPOINT_DIR", folder)
        reporting.autolog(step=False, loss_method=True, reporter=reporter)
        assert reporting.autologged()
        train()
        reporting.disableAutolog()
        train()
        with reporting.Reporter(autolog=True):
            assert reporting.autologged()
            train()
        assert not reporting.autologged()
        progress = json.loads(Path(folder, "progress.json").read_text(encoding="utf-8"))

    losses = reporter.metrics.pop("loss")
    accuracies = reporter.metrics.pop("accuracy")
    assert len(losses) == len(accuracies) == 4
    assert reporter.metrics == {
        "overall_epochs": [2],
        "batch_size": [6],
        "number_of_layers": [1],
        "epoch": [0, 0, 1, 1],
    }
    assert reporter.parameters == {
        "learning_rate": ["0.25"] * 3,
        "loss_method": ["sparse_categorical_crossentropy"],
        "optimizer_name": ["Adam"],
    }
    assert {"epoch": 1.0, "overall_epochs": 2.0}.items() <= progress["metrics"].items()
