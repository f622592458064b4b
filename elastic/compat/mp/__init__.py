"""The model parallelism of the original library, which split layers of Keras 2.2 by channels.

Knows its names only, and what to use instead.
"""

from __future__ import annotations

import enum
from typing import Never, NoReturn

from runai.utils.replaced import replaced

__all__ = ["Method", "init"]

WHY = "it replaced layers of Keras 2.2 by ones that were split by channels"
INSTEAD = (
    "`keras.distribution.ModelParallel` with Keras (its LayoutMap splits weights; JAX and"
    " TensorFlow back ends), `torch.distributed.fsdp.fully_shard` or"
    " `torch.distributed.tensor.parallel.parallelize_module` with PyTorch"
)


class Method(enum.Enum):
    """By which channels layers were split."""

    Cin = 0
    Cout = 1


def init(splits: int, method: Method) -> NoReturn:  # noqa: ARG001 - the original's
    """Refuse, and name what today's frameworks have.

    Raises:
        Replaced: always.
    """
    replaced("runai.mp.init", WHY, INSTEAD)


def __getattr__(name: str) -> Never:
    if name in {"keras", "splits", "method"}:
        replaced(f"runai.mp.{name}", WHY, INSTEAD)
    raise AttributeError(f"module 'runai.mp' has no attribute {name!r}")
