"""Elastic training with PyTorch: the names that a training script imports."""

from __future__ import annotations

from runai.elastic.installation import needs_torch

with needs_torch():
    from runai.elastic.torch import checkpoint
    from runai.elastic.torch.job import Job
    from runai.elastic.torch.loading.loader import DataLoader
    from runai.elastic.torch.resizing import Resized, on_resize, should_stop
    from runai.elastic.torch.start import init

__all__ = ["DataLoader", "Job", "Resized", "checkpoint", "init", "on_resize", "should_stop"]
