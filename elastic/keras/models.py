"""`Model(model)` makes a Keras model elastic: it patches `compile`, `fit` and `evaluate`.

The rest of a training script stays unchanged.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras

import runai.elastic
from runai.elastic.keras.accumulation import Accumulator
from runai.elastic.keras.checkpoint import Checkpoint
from runai.elastic.keras.losses import count_for
from runai.elastic.keras.steps import devices_of, step_of
from runai.elastic.keras.training import CountFunction, EpochCallback, Training, training_of
from runai.elastic.keras.updates import rows, updates_of


def Model(model: Any, *, count: CountFunction | None = None, seed: int = 0) -> Any:  # noqa: N802  # the original's name
    """Make a model's `fit` use `init`'s global batch on any number of GPUs. Return the model.

    `fit(x, y, batch_size=anything)` updates the weights once per global batch. Callbacks, progress
    and `steps_per_epoch` count updates as batches. The order of arrays and PyDatasets follows from
    `seed`, so that a training can be resumed within an epoch.

    Args:
        model: any `keras.Model`, compiled or not.
        count: for losses that are no mean over samples (masks, tokens): returns the number of
            values in the loss's mean, from `(x, y, sample weights)`.
        seed: of the order of samples.

    Raises:
        AttributeError: `runai.elastic.keras.init` was not called.
        TypeError: it is no Keras model.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"Model takes a keras.Model, not {type(model).__name__}.")
    _ = runai.elastic.max_gpu_batch_size  # raises if `init` was not called
    if hasattr(model, "__runai__"):
        return model
    plain = SimpleNamespace(
        make_train_function=model.make_train_function,
        training=Training(count=count, seed=seed),
        count=count,
    )
    object.__setattr__(model, "__runai__", plain)
    for name, patch in (("compile", _compile), ("fit", _fit), ("evaluate", _evaluate)):
        object.__setattr__(model, name, _patched(model, name, patch))
    object.__setattr__(model, "fit_generator", model.fit)
    object.__setattr__(model, "make_train_function", functools.partial(_make_train_function, model))
    if model.compiled:
        _wrap_optimizer(model)
    return model


def _patched(model: Any, name: str, patch: Callable[..., Any]) -> Any:
    @functools.wraps(getattr(model, name))
    def call(*args: Any, **options: Any) -> Any:
        plain = getattr(type(model), name)  # looked up late: runai.reporter.keras patches it too
        return patch(model, functools.partial(plain, model), *args, **options)

    return call


def _compile(model: Any, plain: Callable[..., Any], *args: Any, **options: Any) -> None:
    plain(*args, **options)
    _wrap_optimizer(model)


def _wrap_optimizer(model: Any) -> None:
    """Accumulate a model's gradients; warn of layers that depend on the division."""
    if type(model.optimizer) is not Accumulator:
        if isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer = Accumulator(model.optimizer)
        model.train_function = None
    if any(isinstance(layer, keras.layers.BatchNormalization) for layer in _layers(model)):
        warnings.warn(
            "BatchNormalization takes its statistics from micro-batches, so the result depends on "
            "how the global batch is divided: GroupNormalization or LayerNormalization do not.",
            stacklevel=4,
        )


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers())  # noqa: SLF001  # `layers` leaves out nested ones


def _fit(model: Any, plain: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call Keras's `fit` with one batch for each update."""
    bound = inspect.signature(plain).bind(*args, **options)
    bound.apply_defaults()
    arguments = bound.arguments
    if not model.compiled:
        return plain(*args, **options)  # Keras raises its own error
    training = training_of(model)
    _split_validation(arguments)
    source = updates_of(
        arguments["x"],
        arguments["y"],
        arguments["sample_weight"],
        size=runai.elastic.global_batch_size,
        shuffle=_checked_shuffle(arguments["shuffle"]),
        seed=training.seed,
        steps_per_epoch=arguments["steps_per_epoch"],
    )
    training.begin(source, arguments["class_weight"])
    devices = devices_of(model)
    _build_variables(model, training.example(devices))
    if model.__runai__.count is None:
        training.count = count_for(model)
    has_arrays = isinstance(arguments["validation_data"], list | tuple)
    if has_arrays and arguments["validation_batch_size"] is None:
        arguments["validation_batch_size"] = runai.elastic.max_gpu_batch_size * devices
    callbacks = arguments["callbacks"]
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.append(EpochCallback(training))
    else:
        callbacks = [EpochCallback(training), *keras.tree.flatten(callbacks or [])]
    _expect_checkpoint_callback(callbacks)
    arguments.update(
        x=_UpdateExamples(training, devices),
        y=None,
        sample_weight=None,
        class_weight=None,
        batch_size=None,
        steps_per_epoch=None,
        shuffle=False,
        callbacks=callbacks,
    )
    return plain(*bound.args, **bound.kwargs)


def _expect_checkpoint_callback(callbacks: Any) -> None:
    """Raise if a worker of a resizable job has no `Checkpoint` callback."""
    if keras.backend.backend() != "torch":
        return
    from runai.elastic.keras.generations import current  # noqa: PLC0415  # imports torch

    generation = current()
    if generation is None or generation.max_gpus == 1:
        return
    listed = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    if not any(isinstance(callback, Checkpoint) for callback in listed):
        raise ValueError(
            "Workers of an elastic job go on from a checkpoint when their number changes: "
            "fit(..., callbacks=[runai.elastic.keras.Checkpoint()])."
        )


class _UpdateExamples(keras.utils.PyDataset):  # type: ignore[misc]  # keras has no types
    """The data set that `fit` iterates over: an example batch for each update.

    The step fetches the samples itself, cut for the devices by the plan, so a global batch is
    never on a device as a whole.
    """

    def __init__(self, training: Training, devices: int) -> None:
        super().__init__()
        self._example = _with_tuples(training.example(devices))
        self._length = training.source.per_epoch

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._example


def _with_tuples(batch: Any) -> Any:
    # TensorFlow cannot derive the type spec of a list.
    if isinstance(batch, dict):
        return {name: _with_tuples(part) for name, part in batch.items()}
    return tuple(map(_with_tuples, batch)) if isinstance(batch, list | tuple) else batch


def _build_variables(model: Any, example: Any) -> None:
    """Build a model's variables; on all ranks they are rank 0's."""
    scope = getattr(model, "distribute_strategy", None)
    if keras.backend.backend() == "tensorflow" and scope is not None:
        with scope.scope():
            model._symbolic_build(data_batch=example)  # noqa: SLF001  # as Keras does
    else:
        model._symbolic_build(data_batch=example)  # noqa: SLF001
    if keras.backend.backend() == "torch":
        from runai.elastic.keras.ranks import share_weights  # noqa: PLC0415  # imports torch

        share_weights([*model.variables, *model.optimizer.plain.variables])


def _split_validation(arguments: dict[str, Any]) -> None:
    """Split off the last part of the arrays, as Keras's `validation_split` does."""
    fraction = arguments["validation_split"]
    if not fraction or arguments["validation_data"] is not None:
        return
    if not 0 < fraction < 1:
        raise ValueError(f"validation_split must be between 0 and 1, not {fraction}.")
    whole = (arguments["x"], arguments["y"], arguments["sample_weight"])
    if not all(hasattr(leaf, "shape") for leaf in keras.tree.flatten(whole) if leaf is not None):
        raise ValueError("validation_split needs arrays: give validation_data.")
    split_at = int(rows(whole) * (1 - fraction))

    def part(rows_of_part: slice) -> Any:
        return keras.tree.map_structure(lambda a: None if a is None else a[rows_of_part], whole)

    arguments["x"], arguments["y"], arguments["sample_weight"] = part(slice(split_at))
    arguments["validation_data"] = part(slice(split_at, None))
    arguments["validation_split"] = 0.0


def _checked_shuffle(shuffle: Any) -> bool:
    if shuffle not in {True, False}:
        raise ValueError(f"shuffle must be True or False, not {shuffle!r}.")
    return bool(shuffle)


def _evaluate(model: Any, plain: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call Keras's `evaluate` with the batch size of the GPUs."""
    bound = inspect.signature(plain).bind(*args, **options)
    if hasattr(bound.arguments.get("x"), "shape"):  # data sets have batches of their own
        bound.arguments["batch_size"] = runai.elastic.max_gpu_batch_size * devices_of(model)
    return plain(*bound.args, **bound.kwargs)


def _make_train_function(model: Any, force: bool = False) -> None:  # noqa: FBT001, FBT002  # Keras's
    """Make Keras's train function, and wrap a new one into an update."""
    before = model.train_function
    model.__runai__.make_train_function(force=force)
    if model.train_function is not before:
        model.train_function = step_of(model, training_of(model))
