"""Small models and data, and how far two trainings are apart, for the checks of Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

random = np.random.default_rng(0)
FEATURES = random.normal(size=(112, 8)).astype("float32")
LABELS = random.integers(0, 3, size=112)


def network(*, seed: int = 1) -> Any:
    """Return a small classifier, the same each time."""
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, activation="tanh", kernel_regularizer="l2"),
            keras.layers.Dense(3),
        ]
    )


def compile_options() -> dict[str, Any]:
    """Return what compile takes besides an optimizer."""
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
        # XLA takes seconds for each shape on TensorFlow; the documented script is run with it.
        "jit_compile": "auto" if keras.backend.backend() == "jax" else False,
    }


def weights(model: Any) -> Any:
    """Return all weights in one array."""
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def weight_distance(model: Any, other: Any) -> float:
    """Return the relative distance of two models' weights."""
    mine, theirs = weights(model), weights(other)
    return float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))
