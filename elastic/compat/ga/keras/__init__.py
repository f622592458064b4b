"""Gradient accumulation for Keras, under the original names."""

import runai.elastic.requires_keras  # noqa: F401 - first: it says what to install
from runai.ga.keras import hooks, optimizers

__all__ = ["hooks", "optimizers"]
