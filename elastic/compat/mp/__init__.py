"""Refuse the original library's model parallelism, which split layers of Keras 2.2 by channels."""

import enum

from runai.utils.replaced import refusals

__all__ = ["Method", "init"]

__getattr__ = refusals(__name__)
init = __getattr__("init")


class Method(enum.Enum):
    """By which channels layers were split."""

    Cin = 0
    Cout = 1
