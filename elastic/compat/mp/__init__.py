"""Refused names: the original's model parallelism, which split Keras 2.2 layers by channels."""

import enum

from runai.utils.replaced import refusals

__all__ = ["Method", "init"]

__getattr__ = refusals(__name__)
init = __getattr__("init")


class Method(enum.Enum):
    """The channels by which layers were split."""

    Cin = 0
    Cout = 1
