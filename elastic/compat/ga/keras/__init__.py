"""Gradient accumulation for Keras, under the original names."""

from runai.elastic.installation import needs_keras

with needs_keras():
    from runai.ga.keras import hooks, optimizers

__all__ = ["hooks", "optimizers"]
