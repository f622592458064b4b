"""Elastic training with Keras, on its PyTorch, JAX and TensorFlow back ends.

Called by training scripts: `init`, then `models.Model(model)`; `docs/elastic.md` shows it.
"""

from __future__ import annotations

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "Elastic training with Keras needs Keras 3: pip install 'jupyter-runai[keras]'",
        name=missing.name,
    ) from missing

from runai.elastic.keras import models
from runai.elastic.keras.start import init

__all__ = ["init", "models"]
