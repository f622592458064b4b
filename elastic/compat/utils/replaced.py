"""Refusal of the original library's names without a counterpart, with their replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Never


class Replaced(NotImplementedError):
    """Error: a name of runai 0.4.1 is not supported; the message names its replacement."""


class _Refusals(NamedTuple):
    why: str
    instead: str
    called: tuple[str, ...] = ()
    """Names that can be imported, but raise when called."""
    read: tuple[str, ...] = ()
    """Names that raise when read."""


_REFUSED = {
    "runai.ga.keras.hooks": _Refusals(
        "it replaced functions of keras.backend in graphs of TensorFlow 1",
        "`runai.ga.keras.optimizers.Optimizer(optimizer, steps)`, or"
        " `runai.elastic.keras.models.Model(model)`, which accumulates by itself",
        read=("get_gradients", "update", "update_add", "update_sub"),
    ),
    "runai.mp": _Refusals(
        "it replaced layers of Keras 2.2 by ones that were split by channels",
        "`keras.distribution.ModelParallel` with Keras (its LayoutMap splits weights; JAX and"
        " TensorFlow back ends), `torch.distributed.fsdp.fully_shard` or"
        " `torch.distributed.tensor.parallel.parallelize_module` with PyTorch",
        called=("init",),
        read=("keras", "splits", "method"),
    ),
    "runai.profiler": _Refusals(
        "it recorded sessions of TensorFlow 1",
        "`torch.profiler.profile()` with PyTorch,"
        " `keras.callbacks.TensorBoard(profile_batch=(10, 20))` with Keras,"
        " `tf.profiler.experimental.start(...)` with TensorFlow, `jax.profiler.trace(...)`"
        " with JAX",
        called=("Profiler", "profile"),
        read=("keras", "tf"),
    ),
}


def refusals(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module; its old names raise `Replaced`."""
    refused = _REFUSED[module]

    def refuse(name: str) -> Never:
        raise Replaced(
            f"{module}.{name} does not work any more: {refused.why}. Instead: {refused.instead}."
        )

    def when_called(name: str) -> type:  # a class: programs subclass Profiler
        return type(name, (), {"__new__": lambda *_args, **_options: refuse(name)})

    called = {name: when_called(name) for name in refused.called}

    def get(name: str) -> type:
        if name in refused.read:
            refuse(name)
        if name not in called:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return called[name]

    return get
