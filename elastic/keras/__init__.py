"""Elastic training with Keras."""
