"""Refuse the original library's profiler, which hooked into sessions of TensorFlow 1."""

from runai.utils.replaced import refusals

__all__ = ["Profiler", "profile"]

__getattr__ = refusals(__name__)
Profiler, profile = __getattr__("Profiler"), __getattr__("profile")
