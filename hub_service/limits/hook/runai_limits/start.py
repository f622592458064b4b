"""Entry point of the hook in every Python process of a workload.

Only watches for imports of frameworks and IPython; everything else waits for such an import.
"""

from __future__ import annotations

from .after_import import ImportWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

WATCHED = ("torch", "tensorflow.python.eager.context", "IPython.core.interactiveshell")
USERS = ("jax", "cupy", "numba.cuda")
"""Further frameworks that search for devices at their first use; they need current devices only."""


def start(environ: Mapping[str, str]) -> None:
    """Watch for imports of frameworks and IPython, in a workload with a device."""
    if environ.get("RUNAI_GPU_MEMORY_LIMITS_MIB"):
        renewed: list[bool] = []
        ImportWatch(dict.fromkeys((*WATCHED, *USERS), lambda module: _imported(module, renewed)))


def _imported(module: ModuleType, renewed: list[bool]) -> None:
    import os  # noqa: PLC0415  keeps the start of every process fast

    from .after_import import swallowed  # noqa: PLC0415
    from .grant import renew  # noqa: PLC0415

    if not renewed:
        renewed.append(True)
        swallowed("grant", renew, os.environ)
    if module.__name__ in USERS:
        return
    if module.__name__ == "IPython.core.interactiveshell":
        from .notebook import watch_shells  # noqa: PLC0415

        watch_shells(module)
        return
    from .frameworks import cap_tensorflow, cap_torch  # noqa: PLC0415
    from .share import Share  # noqa: PLC0415

    share = Share.of(os.environ)
    if share is None:
        return
    if module.__name__ == "torch":
        cap_torch(module, share)
    else:
        cap_tensorflow(module, share)
