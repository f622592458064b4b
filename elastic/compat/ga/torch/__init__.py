"""Gradient accumulation for PyTorch, under the original names."""

import runai.elastic.requires_torch  # noqa: F401 - first: it says what to install
from runai.ga.torch import optim

__all__ = ["optim"]
