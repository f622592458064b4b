"""Gradient accumulation under the names of the original library (runai 0.4.1)."""
