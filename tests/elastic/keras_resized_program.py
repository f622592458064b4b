"""A Keras training that is resized by its cluster: `keras_resized_program.py DIRECTORY EPOCHS`.

Each run appends a line per update to DIRECTORY/records (worker, GPUs, update), makes the number of
updates in DIRECTORY/allowed, and at the end writes the distance of its weights from plain Keras's
on whole batches. Started by the launcher or the platform, on any back end; simulated GPUs are
devices that JAX and TensorFlow split off the processor.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if os.environ["KERAS_BACKEND"] != "tensorflow":
    # PyTorch and JAX would import TensorFlow, which takes longer than the whole training.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]

import keras

import runai.elastic.keras
from keras_models import FEATURES, LABELS, compile_options, network, weight_distance

UPDATES_PER_EPOCH = 3
SIMULATED = [name for name in os.environ.get("RUNAI_GPU_DEVICES", "").split(",") if name]


def devices() -> int | None:
    """Split the processor into a device per simulated GPU, and return their number."""
    count = len(SIMULATED)
    if count == 0 or keras.backend.backend() == "torch":
        return None
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        processor = tf.config.list_physical_devices("CPU")[0]
        part = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(processor, [part] * count)
    else:
        import jax

        jax.config.update("jax_num_cpu_devices", count)
    return count


class Gate(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that records each update before it is made, and waits until it is allowed."""

    def __init__(self, directory: Path, checkpoint: runai.elastic.keras.Checkpoint) -> None:
        super().__init__()
        self._directory, self._checkpoint = directory, checkpoint
        self._epoch = self._first = 0
        self._worker = os.environ.get("RUNAI_WORKER", "alone").rpartition("/")[2]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._first = self.model.__runai__.training.done  # earlier updates are not repeated

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch < self._first:
            return
        update = self._epoch * UPDATES_PER_EPOCH + batch
        record = {"worker": self._worker, "gpus": runai.elastic.gpus, "update": update}
        record |= {"pid": os.getpid(), "rank": runai.elastic.rank}
        with (self._directory / "records").open("a") as records:
            records.write(json.dumps(record) + "\n")
        while update >= int((self._directory / "allowed").read_text()):
            if self._checkpoint._stop.is_requested:  # a stopped worker ends its update
                break
            time.sleep(0.01)


def main(directory: Path, epochs: int) -> None:
    """Train elastically to the end, and compare the weights with plain Keras."""
    runai.elastic.keras.init(48, 12, gpus=devices())
    schedule = keras.optimizers.schedules.CosineDecay(0.05, UPDATES_PER_EPOCH * epochs)
    # Different initial weights per worker: the first one's count, or the checkpoint's.
    seed = 1 if runai.elastic.master else 2
    model = runai.elastic.keras.models.Model(network(seed=seed))
    model.compile(keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=0.5), **compile_options())
    checkpoint = runai.elastic.keras.Checkpoint()
    callbacks = [Gate(directory, checkpoint), checkpoint]
    model.fit(FEATURES, LABELS, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    if not runai.elastic.master:
        return
    if keras.backend.backend() == "jax":
        keras.distribution.set_distribution(None)
    native = network()
    native.compile(keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=0.5), **compile_options())
    native.fit(FEATURES, LABELS, batch_size=48, epochs=epochs, shuffle=False, verbose=0)
    updates = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
    result = {"apart": weight_distance(model, native), "updates": updates}
    (directory / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
