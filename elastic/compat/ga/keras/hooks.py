"""Refused names: functions that the original library replaced in Keras 2's graphs."""

from runai.utils.replaced import refusals

__getattr__ = refusals("runai.ga.keras.hooks")
