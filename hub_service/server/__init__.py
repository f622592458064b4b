"""Composition roots of the service, its settings, and its process."""
