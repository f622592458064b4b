"""Checks of the accumulator around a Keras optimizer, on the back end of this process.

I9 of the design, and one check per fault of Keras's own `gradient_accumulation_steps`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_models import FEATURES, LABELS, compile_options, network, weight_distance, weights
from runai.elastic.keras.accumulation import Accumulator, Periodic

GLOBAL_BATCH = 48
MICRO_BATCHES = [[24, 24], [24, 12, 12], [12, 12, 12, 12], [12, 24, 12]] * 2
"""Their sizes, for each of eight updates; few shapes, since each is compiled."""


def _decaying() -> Any:
    return keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(_decaying(), momentum=0.9, clipnorm=0.5),
    "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.3),
    "adamw": lambda: keras.optimizers.AdamW(
        0.01, weight_decay=0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True),
}


def train(model: Any, updates: Sequence[Sequence[int]]) -> None:
    """Make one update per entry of `updates`: the sizes of its micro-batches."""
    for number, sizes in enumerate(updates):
        offset = number % 2 * GLOBAL_BATCH
        for step, size in enumerate(sizes):
            if hasattr(model.optimizer, "begin"):
                model.optimizer.begin(size / sum(sizes), last=step == len(sizes) - 1)
            model.train_on_batch(FEATURES[offset : offset + size], LABELS[offset : offset + size])
            offset += size


def train_natively(optimizer: Any, updates: int) -> Any:
    """Return a model trained with Keras alone, on whole batches."""
    model = network()
    model.compile(optimizer, **compile_options())
    train(model, [[GLOBAL_BATCH]] * updates)
    return model


def train_accumulating(optimizer: Any, updates: Sequence[Sequence[int]]) -> Any:
    """Return a model trained with an accumulator."""
    model = network()
    model.compile(Accumulator(optimizer), **compile_options())
    train(model, updates)
    return model


@cache
def trained_pair(name: str) -> tuple[Any, Any]:
    """Return our and Keras's model after eight updates, ours with varying micro-batches."""
    return train_accumulating(OPTIMIZERS[name](), MICRO_BATCHES), train_natively(
        OPTIMIZERS[name](), len(MICRO_BATCHES)
    )


def check_four_optimizers_resized_at_each_update_equal_the_full_batch() -> None:
    for name in OPTIMIZERS:
        distance = weight_distance(*trained_pair(name))

        assert distance < 1e-6, (name, distance)


def check_learning_rate_schedule_counts_updates() -> None:
    model, _ = trained_pair("sgd")

    assert int(model.optimizer.iterations) == len(MICRO_BATCHES)
    assert np.isclose(float(model.optimizer.learning_rate), 0.2 * 0.5**4)  # half after two updates


def check_weight_average_counts_updates() -> None:
    averages = []
    for model in trained_pair("adamw"):
        copy = network(seed=2)
        for variable, trained in zip(copy.variables, model.variables, strict=True):
            variable.assign(trained)
        model.optimizer.finalize_variable_values(model.trainable_variables)
        averages.append(weights(model))
        model.set_weights(copy.get_weights())

    assert np.linalg.norm(averages[0] - averages[1]) < 1e-6 * np.linalg.norm(averages[1])


def check_whole_batch_checkpoint_resumes_with_micro_batches() -> None:
    make_adam = OPTIMIZERS["adam"]
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.weights.h5"))
        whole = train_natively(make_adam(), 2)
        whole.save_weights(file)
        halves = network(seed=2)
        halves.compile(Accumulator(make_adam()), **compile_options())
        halves.optimizer.build(halves.trainable_variables)
        halves.load_weights(file)
    train(whole, [[GLOBAL_BATCH]] * 2)
    train(halves, [[24, 24]] * 2)

    assert weight_distance(halves, whole) < 1e-6


def check_saved_model_has_the_plain_optimizer_with_its_state() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.keras"))
        model, _ = trained_pair("adamw")
        model.save(file)
        loaded = keras.models.load_model(file)

    assert type(loaded.optimizer) is type(OPTIMIZERS["adamw"]())
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for saved, original in zip(
        loaded.optimizer.variables, model.optimizer.plain.variables, strict=True
    ):
        assert np.array_equal(
            keras.ops.convert_to_numpy(saved), keras.ops.convert_to_numpy(original)
        )


def check_wrapped_optimizer_in_use_retains_its_moments() -> None:
    make_adam = OPTIMIZERS["adam"]
    model = train_natively(make_adam(), 2)
    model.compile(Accumulator(model.optimizer), **compile_options())
    train(model, [[24, 24]] * 2)

    assert weight_distance(model, train_natively(make_adam(), 4)) < 1e-6


def check_accumulator_exposes_the_plain_optimizers_attributes() -> None:
    accumulator = Accumulator(keras.optimizers.Adam(0.01, clipnorm=2.0, beta_1=0.8))
    accumulator.learning_rate = 0.5

    assert isinstance(accumulator, keras.optimizers.Adam)
    assert float(accumulator.plain.learning_rate) == 0.5
    assert (accumulator.clipnorm, accumulator.beta_1) == (2.0, 0.8)


def check_keras_gradient_accumulation_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="gradient_accumulation_steps=2"):
        Accumulator(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))


def check_embedding_gradients_accumulate_to_the_whole_batch() -> None:
    tokens = np.random.default_rng(1).integers(0, 9, size=(40, 5))
    trained = []
    for sizes in ([40], [20, 10, 10]):  # the whole batch, and micro-batches
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((5,)),
                keras.layers.Embedding(9, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(Accumulator(keras.optimizers.Adam(0.01)), "mse")
        for _ in range(3):
            offset = 0
            for step, size in enumerate(sizes):
                model.optimizer.begin(size / 40, last=step == len(sizes) - 1)
                model.train_on_batch(
                    tokens[offset : offset + size], tokens[offset : offset + size, :1]
                )
                offset += size
        trained.append(model)

    assert weight_distance(*trained) < 1e-6


def check_micro_batch_overflow_skips_the_update_and_halves_the_scale() -> None:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)
    model = train_accumulating(scaled, [[24, 24]])
    before = model.get_weights()
    broken = FEATURES[:24].copy()
    broken[3] = np.inf
    for batch, last in ((broken, False), (FEATURES[:24], True)):
        model.optimizer.begin(0.5, last=last)
        model.train_on_batch(batch, LABELS[:24])

    assert float(model.optimizer.dynamic_scale) == 1024.0 / 2
    for current, initial in zip(model.get_weights(), before, strict=True):
        assert np.array_equal(current, initial)
    train(model, [[24, 24]])
    assert int(model.optimizer.iterations) == 2


def check_periodic_optimizer_updates_after_every_nth_step() -> None:
    model = network()
    model.compile(Periodic(keras.optimizers.SGD(0.1), 2), **compile_options())
    for offset in (0, 24, 48, 72):
        model.train_on_batch(FEATURES[offset : offset + 24], LABELS[offset : offset + 24])

    assert int(model.optimizer.iterations) == 2
    assert weight_distance(model, train_natively(keras.optimizers.SGD(0.1), 2)) < 1e-6
