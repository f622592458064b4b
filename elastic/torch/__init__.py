"""Elastic training with PyTorch: what a training script imports.

Knows the public names only; each file beside it has one of them.
"""

from __future__ import annotations

import runai.elastic.requires_torch  # noqa: F401 - first: it says what to install
from runai.elastic.torch import checkpoint
from runai.elastic.torch.job import Job
from runai.elastic.torch.loading import DataLoader
from runai.elastic.torch.resizing import Resized, on_resize, should_stop
from runai.elastic.torch.start import init

__all__ = ["DataLoader", "Job", "Resized", "checkpoint", "init", "on_resize", "should_stop"]
