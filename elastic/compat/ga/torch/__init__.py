"""Gradient accumulation for PyTorch, under the original names."""

from runai.ga.torch import optim

__all__ = ["optim"]
