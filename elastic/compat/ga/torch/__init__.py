"""Gradient accumulation for PyTorch, under the original names."""

from runai.elastic.installation import needs_torch

with needs_torch():
    from runai.ga.torch import optim

__all__ = ["optim"]
