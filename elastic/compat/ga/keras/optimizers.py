"""Keras optimizers that update on every `steps`-th micro-batch, under the original names.

They wrap `runai.elastic.keras.accumulation`; `runai.elastic.keras.models.Model` needs none, as it
accumulates itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from runai.elastic.keras.accumulation import Periodic


def Optimizer(optimizer: Any, steps: int) -> Any:  # noqa: N802 - the original's
    """Make an optimizer update on every `steps`-th micro-batch, with the gradients' mean.

    Schedules, averages, weight decay and clipping count updates; a saved model has the plain
    optimizer.

    Args:
        optimizer: of Keras, by name, configuration or instance; its state stays.
        steps: micro-batches of an update, such as `runai.elastic.steps`.

    Raises:
        ValueError: `steps` is below 1, or the optimizer accumulates by itself.
    """
    return Periodic(optimizer, steps)


def _named(name: str) -> Callable[..., Any]:
    def make(steps: int, **options: Any) -> Any:
        return Periodic(getattr(keras.optimizers, name)(**options), steps)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Make a `keras.optimizers.{name}` that acts on every `steps`-th micro-batch."
    return make


SGD = _named("SGD")
RMSprop = _named("RMSprop")
Adagrad = _named("Adagrad")
Adadelta = _named("Adadelta")
Adam = _named("Adam")
Adamax = _named("Adamax")
Nadam = _named("Nadam")
