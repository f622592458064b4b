"""Which types of GPU somebody means: "A100", "nvidia a100 80gb", or the whole of a type's name.

Pure. Names of types are those of NVML on one machine ("NVIDIA A100-SXM4-80GB"), and of NVIDIA's
feature discovery on Kubernetes ("NVIDIA-A100-SXM4-80GB"). Called by `submission`.
"""

import re
from collections.abc import Iterable

from runai.hub_service.errors import InvalidRequest

_BETWEEN = re.compile(r"[\s_-]+")


def types_meant(asked: str, there: Iterable[str]) -> tuple[str, ...]:
    """Return the types that are called so, or that have all of its words in their names.

    >>> types_meant("a100", ["NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA A100-PCIE-40GB"])
    ('NVIDIA A100-PCIE-40GB', 'NVIDIA A100-SXM4-80GB')
    >>> types_meant("A100 80GB", ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB"])
    ('NVIDIA-A100-SXM4-80GB',)
    >>> types_meant("nvidia l4", ["NVIDIA L4", "NVIDIA L4 24GB"])
    ('NVIDIA L4',)

    Raises:
        InvalidRequest: there is none; names those there are.
    """
    known = sorted({name for name in there if name})
    words = _words(asked)
    exactly = [name for name in known if _words(name) == words]
    meant = exactly or [name for name in known if words and {*words} <= {*_words(name)}]
    if meant:
        return tuple(meant)
    raise InvalidRequest(
        f"There is no GPU of type {asked}.",
        hint=f"There is {' and '.join(known)}." if known else "No node says which type it has.",
        code="no_such_gpu_type",
    )


def _words(name: str) -> list[str]:
    return [word for word in _BETWEEN.split(name.lower()) if word]
