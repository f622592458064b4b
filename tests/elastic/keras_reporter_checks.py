"""`runai.reporter.keras`: the automatic reports of trainings."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import runai.reporter.keras as reporting


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
