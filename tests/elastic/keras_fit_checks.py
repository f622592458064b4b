"""Checks of `fit` of an elastic Keras model, on the back end of this process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

import runai.elastic.keras
from keras_models import FEATURES, LABELS, compile_options, network, weight_distance


def optimizer() -> Any:
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 15)
    return keras.optimizers.SGD(schedule, momentum=0.9, clipnorm=0.5)


def elastic_model(global_batch: int, gpu_batch: int, **options: Any) -> Any:
    """Return an elastic model, compiled."""
    runai.elastic.keras.init(global_batch, gpu_batch)
    model = runai.elastic.keras.models.Model(network(), **options)
    model.compile(optimizer(), **compile_options())
    return model


def plain_model() -> Any:
    model = network()
    model.compile(optimizer(), **compile_options())
    return model


def check_fit_with_tails_equals_fit_on_full_batches() -> None:
    fit_options: dict[str, Any] = {
        "epochs": 2,
        "shuffle": False,
        "verbose": 0,
        "validation_split": 0.2,
        "class_weight": {0: 2.0, 1: 1.0, 2: 0.5},
    }
    native = plain_model()
    expected = native.fit(FEATURES, LABELS, batch_size=50, **fit_options).history
    for gpu_batch in (50, 16):
        model = elastic_model(50, gpu_batch)

        history = model.fit(FEATURES, LABELS, batch_size=11, **fit_options).history

        assert weight_distance(model, native) < 1e-6
        assert int(model.optimizer.iterations) == 4
        assert sorted(history) == sorted(expected)
        for name, values in expected.items():
            assert np.allclose(history[name], values, atol=1e-6), name


def check_documented_script_runs_unchanged() -> None:
    import runai.elastic.keras

    runai.elastic.keras.init(256, 64)
    model = runai.elastic.keras.models.Model(network())
    model.compile(optimizer="sgd", loss="mse")
    model.fit(FEATURES, FEATURES[:, :3], batch_size=runai.elastic.batch_size, epochs=1, verbose=0)

    assert (runai.elastic.steps, runai.elastic.batch_size) == (4, 64)
    assert (runai.elastic.gpus, runai.elastic.master) == (1, True)
    assert int(model.optimizer.iterations) == 1


def check_changed_gpu_batch_takes_effect_at_the_next_update() -> None:
    def resize(batch: int) -> None:
        runai.elastic.keras.init(48, (48, 24, 16)[batch % 3])

    native, model = plain_model(), elastic_model(48, 48)
    native.fit(FEATURES, LABELS, batch_size=48, epochs=2, shuffle=False, verbose=0)
    model.fit(
        FEATURES,
        LABELS,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: resize(batch))
        ],
    )

    assert weight_distance(model, native) < 1e-6


def check_keras_batch_callbacks_count_updates() -> None:
    batch_numbers: list[int] = []
    model = elastic_model(48, 16)
    model.fit(
        FEATURES,
        LABELS,
        epochs=2,
        steps_per_epoch=3,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: batch_numbers.append(batch)
            )
        ],
    )

    assert batch_numbers == [0, 1, 2, 0, 1, 2]
    assert int(model.optimizer.iterations) == 6


class _Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __init__(self, size: int) -> None:
        super().__init__()
        self._starts = range(0, len(FEATURES), size)
        self._size = size

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Any:
        rows = slice(self._starts[index], self._starts[index] + self._size)
        return FEATURES[rows], LABELS[rows]


def check_data_set_types_make_the_same_updates() -> None:
    native = plain_model()
    native.fit(FEATURES, LABELS, batch_size=48, shuffle=False, verbose=0)
    batches = _Batches(14)
    data_sets: dict[str, tuple[Any, dict[str, Any]]] = {
        "PyDataset": (_Batches(24), {}),
        "generator": ((batches[i] for i in range(len(batches))), {"steps_per_epoch": 3}),
    }
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        data_sets["tf.data"] = (
            tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(16),
            {},
        )
    if keras.backend.backend() == "torch":
        import torch

        tensors = torch.utils.data.TensorDataset(torch.tensor(FEATURES), torch.tensor(LABELS))
        data_sets["DataLoader"] = (torch.utils.data.DataLoader(tensors, batch_size=24), {})
    for name, (data, options) in data_sets.items():
        model = elastic_model(48, 16)
        model.fit(data, shuffle=False, verbose=0, **options)

        assert weight_distance(model, native) < 1e-6, name


def check_shuffle_yields_each_sample_once_in_an_order_of_the_seed() -> None:
    orders = []
    for _ in range(2):
        model = elastic_model(48, 16)
        model.fit(FEATURES, LABELS, epochs=1, verbose=0)
        source = model.__runai__.training.source
        orders.append([source.update(epoch, u)[0] for epoch in range(2) for u in range(3)])
    first, second = np.concatenate(orders[0][:3]), np.concatenate(orders[0][3:])

    assert sorted(first[:, 0].tolist()) == sorted(FEATURES[:, 0].tolist())
    assert not np.array_equal(first, second)
    assert all(np.array_equal(a, b) for a, b in zip(*orders, strict=True))


def check_masked_loss_is_weighted_by_unmasked_tokens() -> None:
    tokens = np.random.default_rng(3).integers(0, 5, size=(32, 6))
    targets = (tokens + 1) % 5

    def network() -> Any:
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [keras.Input((6,)), keras.layers.Embedding(5, 4, mask_zero=True), keras.layers.Dense(5)]
        )

    def compiled(model: Any) -> Any:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss)
        return model

    native = compiled(network())
    native.fit(tokens, targets, batch_size=16, epochs=2, shuffle=False, verbose=0)
    runai.elastic.keras.init(16, 4)
    model_with_count = compiled(
        runai.elastic.keras.models.Model(network(), count=lambda x, y, weights: (x != 0).sum())
    )
    model_with_count.fit(tokens, targets, epochs=2, shuffle=False, verbose=0)

    assert weight_distance(model_with_count, native) < 1e-6
    model_without_count = compiled(runai.elastic.keras.models.Model(network()))
    assert "count=" in refusal_of(lambda: model_without_count.fit(tokens, targets, verbose=0))


def check_inexact_data_or_loss_is_refused_with_a_hint() -> None:
    model = elastic_model(48, 16)

    def fit_summed_loss() -> Any:
        summed = runai.elastic.keras.models.Model(network())
        summed.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
        return summed.fit(FEATURES, FEATURES[:, :3], verbose=0)

    assert "steps_per_epoch" in refusal_of(lambda: model.fit(iter([]), verbose=0))
    assert "rebatch(48)" in refusal_of(lambda: model.fit(_Batches(36), verbose=0))
    assert "PyDataset" in refusal_of(lambda: model.fit(object(), verbose=0))
    assert "sum_over_batch_size" in refusal_of(fit_summed_loss)


def refusal_of(act: Any) -> str:
    try:
        act()
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError("it was accepted")


def check_fitted_model_is_saved_with_the_plain_optimizer() -> None:
    model = elastic_model(48, 16)
    model.fit(FEATURES, LABELS, epochs=2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.keras"))
        model.save(file)
        loaded = keras.models.load_model(file)
    resumed = loaded.fit(FEATURES, LABELS, batch_size=48, epochs=1, verbose=0)

    assert type(loaded.optimizer) is type(optimizer())
    assert int(loaded.optimizer.iterations) == 9
    assert "loss" in resumed.history


def check_several_inputs_and_outputs_are_sliced_together() -> None:
    def network() -> Any:
        keras.utils.set_random_seed(1)
        left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
        merged = keras.layers.Concatenate()([left, right])
        outputs = [keras.layers.Dense(1, name=name)(merged) for name in ("a", "b")]
        return keras.Model([left, right], outputs)

    x, y = [FEATURES[:, :4], FEATURES[:, 4:]], [FEATURES[:, :1], FEATURES[:, 1:2]]
    native = network()
    native.compile("sgd", ["mse", "mae"], loss_weights=[1.0, 0.5])
    native.fit(x, y, batch_size=48, shuffle=False, verbose=0)
    runai.elastic.keras.init(48, 16)
    model = runai.elastic.keras.models.Model(network())
    model.compile("sgd", ["mse", "mae"], loss_weights=[1.0, 0.5])
    model.fit(x, y, shuffle=False, verbose=0)

    assert weight_distance(model, native) < 1e-6


def check_evaluate_equals_plain_evaluate() -> None:
    model = elastic_model(48, 16)

    assert np.allclose(
        model.evaluate(FEATURES, LABELS, verbose=0),
        plain_model().evaluate(FEATURES, LABELS, verbose=0),
    )
