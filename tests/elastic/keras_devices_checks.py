"""Two devices of one process (JAX, TensorFlow), which a process makes once."""

from __future__ import annotations

import keras

import runai.elastic.keras
from keras_models import LABELS, X, apart, classify, network


def two_devices() -> None:
    """Make two devices out of the processor."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        processor = tf.config.list_physical_devices("CPU")[0]
        half = tf.config.LogicalDeviceConfiguration()
        tf.config.set_logical_device_configuration(processor, [half, half])
    else:
        import jax

        jax.config.update("jax_num_cpu_devices", 2)


def check_two_devices_train_as_one_does() -> None:
    two_devices()
    native = network()
    native.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), **classify())
    native.fit(X[:109], LABELS[:109], batch_size=48, epochs=2, shuffle=False, verbose=0)

    runai.elastic.keras.init(48, 12, gpus=2)
    model = runai.elastic.keras.models.Model(network())
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), **classify())
    model.fit(X[:109], LABELS[:109], epochs=2, shuffle=False, verbose=0)

    assert (runai.elastic.gpus, runai.elastic.steps) == (2, 2)
    assert apart(model, native) < 1e-6
