"""Several devices in one process (JAX, TensorFlow): exact, and resumed with another number.

Run last: in both back ends a process that trains on several devices cannot go back to one.
"""

from __future__ import annotations

import os
import signal
import tempfile
from typing import Any

import keras
import pytest

import runai.elastic.keras
from keras_models import FEATURES, LABELS, compile_options, network, weight_distance
from runai.elastic.keras import Checkpoint


def _compiled(model: Any) -> Any:
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), **compile_options())
    return model


def _fit(model: Any, *callbacks: Any) -> Any:
    options = {"batch_size": 48, "epochs": 2, "shuffle": False, "verbose": 0}
    model.fit(FEATURES[:109], LABELS[:109], callbacks=list(callbacks), **options)
    return model


def check_training_resumed_on_two_devices_equals_a_single_device() -> None:
    started_batches = []

    def stop_in_fourth_batch(batch: int, logs: Any) -> None:
        started_batches.append(batch)
        if len(started_batches) == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    expected = _fit(_compiled(network()))
    with tempfile.TemporaryDirectory() as folder:
        runai.elastic.keras.init(48, 12, gpus=1)
        model = _compiled(runai.elastic.keras.models.Model(network()))
        stop_callback = keras.callbacks.LambdaCallback(on_train_batch_begin=stop_in_fourth_batch)
        with pytest.raises(SystemExit):
            _fit(model, stop_callback, Checkpoint(folder))

        runai.elastic.keras.init(48, 12, gpus=2)
        resumed = _compiled(runai.elastic.keras.models.Model(network(seed=2)))
        _fit(resumed, Checkpoint(folder))

    assert len(started_batches) == 4
    assert (runai.elastic.gpus, runai.elastic.steps) == (2, 2)
    assert weight_distance(resumed, expected) < 1e-6
