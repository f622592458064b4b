"""Elastic training with Keras, on its PyTorch, JAX and TensorFlow back ends.

A training script calls `init`, then `models.Model(model)`; see `docs/elastic.md`.
"""

from runai.elastic.installation import needs_keras

with needs_keras():
    from runai.elastic.keras import models
    from runai.elastic.keras.checkpoint import Checkpoint
    from runai.elastic.keras.start import init

__all__ = ["Checkpoint", "init", "models"]
