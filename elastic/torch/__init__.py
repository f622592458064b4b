"""Elastic training with PyTorch."""
