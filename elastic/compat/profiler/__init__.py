"""The profiler of the original library, which hooked into sessions of TensorFlow 1.

Knows its names only, and what to use instead: frameworks bring profilers of their own.
"""

from __future__ import annotations

from typing import Never, NoReturn

from runai.utils.replaced import replaced

__all__ = ["Profiler", "profile"]

WHY = "it recorded sessions of TensorFlow 1"
INSTEAD = (
    "`torch.profiler.profile()` with PyTorch, `keras.callbacks.TensorBoard(profile_batch=(10, 20))`"
    " with Keras, `tf.profiler.experimental.start(...)` with TensorFlow, `jax.profiler.trace(...)`"
    " with JAX"
)


def profile(steps: int, dst: str = "/tmp/") -> NoReturn:  # noqa: ARG001, S108 - the original's
    """Refuse, and name the profilers of today's frameworks.

    Raises:
        Replaced: always.
    """
    replaced("runai.profiler.profile", WHY, INSTEAD)


class Profiler:
    """Was the base of the hooks into sessions."""

    def __new__(cls, *args: object, **kwargs: object) -> Never:  # noqa: ARG004
        """Refuse, and name the profilers of today's frameworks.

        Raises:
            Replaced: always.
        """
        replaced("runai.profiler.Profiler", WHY, INSTEAD)


def __getattr__(name: str) -> Never:
    if name in {"keras", "tf"}:
        replaced(f"runai.profiler.{name}", WHY, INSTEAD)
    raise AttributeError(f"module 'runai.profiler' has no attribute {name!r}")
