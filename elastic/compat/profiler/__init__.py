"""Refused names: the original library's profiler of TensorFlow 1 sessions."""

from runai.utils.replaced import refusals

__all__ = ["Profiler", "profile"]

__getattr__ = refusals(__name__)
Profiler, profile = __getattr__("Profiler"), __getattr__("profile")
