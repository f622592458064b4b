"""The original library's names of gradient accumulation for Keras."""

from __future__ import annotations

import keras
import pytest

import runai.ga.keras
from runai.utils.replaced import Replaced


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
