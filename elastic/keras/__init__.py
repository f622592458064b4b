"""Elastic training with Keras, on its PyTorch, JAX and TensorFlow back ends.

Called by training scripts: `init`, then `models.Model(model)`; `docs/elastic.md` shows it.
"""

import runai.elastic.requires_keras  # noqa: F401 - first: it says what to install
from runai.elastic.keras import models
from runai.elastic.keras.checkpoint import Checkpoint
from runai.elastic.keras.start import init

__all__ = ["Checkpoint", "init", "models"]
