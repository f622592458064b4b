"""Checks of stopping and resuming a Keras training, on the back end of this process."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import runai.elastic.keras
from keras_models import FEATURES, LABELS, compile_options, network, weight_distance
from runai.elastic.keras import Checkpoint
from runai.hub_service.wire.elastic_messages import ElasticFiles, Target

GLOBAL_BATCH = 48


def fit_with_checkpoints(
    folder: str, gpu_batch: int, *callbacks: Any, global_batch: int = GLOBAL_BATCH, **options: Any
) -> Any:
    """Train three epochs of three updates with checkpoints; return model and history."""
    runai.elastic.keras.init(global_batch, gpu_batch)
    model = runai.elastic.keras.models.Model(network())
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 9)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.9), **compile_options())
    checkpoint = Checkpoint(folder, **options)
    history = model.fit(FEATURES, LABELS, epochs=3, verbose=0, callbacks=[*callbacks, checkpoint])
    return model, history.history


def stop_in_update(update: int) -> Any:
    """Send SIGTERM to this process during its n-th update, as the platform does."""
    started_updates = []

    def count(batch: int, logs: Any) -> None:
        started_updates.append(batch)
        if len(started_updates) == update:
            os.kill(os.getpid(), signal.SIGTERM)

    return keras.callbacks.LambdaCallback(on_train_batch_begin=count)


def check_stopped_training_resumes_in_mid_epoch_with_more_micro_batches() -> None:
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as folder:
        undisturbed, expected = fit_with_checkpoints(whole, GLOBAL_BATCH)
        with pytest.raises(SystemExit) as exit_info:
            fit_with_checkpoints(folder, GLOBAL_BATCH, stop_in_update(5))
        resumed, history = fit_with_checkpoints(folder, 16)

    assert exit_info.value.code == 128 + signal.SIGTERM
    assert int(resumed.optimizer.iterations) == 9  # three epochs of three updates
    assert weight_distance(resumed, undisturbed) < 1e-6
    assert np.allclose(history["loss"], expected["loss"][1:], atol=1e-5)
    assert np.allclose(history["accuracy"], expected["accuracy"][1:], atol=1e-5)


def check_finished_training_is_not_trained_again() -> None:
    with tempfile.TemporaryDirectory() as folder:
        finished, _ = fit_with_checkpoints(folder, GLOBAL_BATCH)
        rerun, _ = fit_with_checkpoints(folder, GLOBAL_BATCH)

    assert weight_distance(rerun, finished) == 0.0


def check_checkpoints_of_a_different_global_batch_are_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        fit_with_checkpoints(folder, GLOBAL_BATCH)
        with pytest.raises(ValueError, match="global_batch_size 48, not 24"):
            fit_with_checkpoints(folder, 24, global_batch=24)


def check_checkpoints_need_a_directory_and_an_elastic_model() -> None:
    os.environ.pop("RUNAI_CHECKPOINT_DIR", None)
    with pytest.raises(ValueError, match="RUNAI_CHECKPOINT_DIR"):
        Checkpoint()
    model = network()
    model.compile("sgd", **compile_options())
    with tempfile.TemporaryDirectory() as folder, pytest.raises(TypeError, match="Model"):
        model.fit(FEATURES, LABELS, verbose=0, callbacks=[Checkpoint(folder)])


def check_several_workers_need_a_supporting_back_end_and_checkpoints() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environ:
        for name, value in {
            "RUNAI_ELASTIC_DIR": folder,
            "RUNAI_WORKER": "vision/exp1-0",
            "WORLD_SIZE": "1",  # the first of two workers, while the cluster is full
        }.items():
            environ.setenv(name, value)
        ElasticFiles(Path(folder)).write_target(
            Target(1, ("vision/exp1-0",), "127.0.0.1:1", gpus=1, least=1, most=2)
        )
        if keras.backend.backend() == "torch":
            _fit_without_checkpoints()
        else:
            with pytest.raises(ValueError, match=r"--gpus N instead of --workers N"):
                runai.elastic.keras.init(48, 48)


def _fit_without_checkpoints() -> None:
    from runai.elastic.keras import generations

    runai.elastic.keras.init(48, 48)
    try:
        model = runai.elastic.keras.models.Model(network())
        model.compile("sgd", **compile_options())
        with pytest.raises(ValueError, match=r"callbacks=\[runai.elastic.keras.Checkpoint"):
            model.fit(FEATURES, LABELS, verbose=0)
    finally:
        for generation in generations._entered:
            generation.stop.close()
        generations._entered.clear()
