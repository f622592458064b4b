"""Gradient accumulation for PyTorch, under the original names."""
