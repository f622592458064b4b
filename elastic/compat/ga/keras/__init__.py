"""Gradient accumulation for Keras, under the original names."""
