"""What the original library replaced in Keras 2's graphs while it accumulated.

Knows its names only, and what to use instead.
"""

from __future__ import annotations

from typing import Never

from runai.utils.replaced import replaced

__all__: list[str] = []

WHY = "it replaced functions of keras.backend in graphs of TensorFlow 1"
INSTEAD = (
    "`runai.ga.keras.optimizers.Optimizer(optimizer, steps)`, or "
    "`runai.elastic.keras.models.Model(model)`, which accumulates by itself"
)


def __getattr__(name: str) -> Never:
    if name in {"get_gradients", "update", "update_add", "update_sub"}:
        replaced(f"runai.ga.keras.hooks.{name}", WHY, INSTEAD)
    raise AttributeError(f"module 'runai.ga.keras.hooks' has no attribute {name!r}")
