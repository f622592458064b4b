"""Automatic reports of every `fit` of a Keras model.

For Keras 3 (any back end): `keras.Model.fit` gets an additional callback while logging is on.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any, Final, Protocol

import keras

import runai.reporter

ACCURACIES: Final = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy")

_Logs = Mapping[str, float] | None


class _Sink(Protocol):
    """A target of reports: a Reporter, or the module."""

    def reportMetric(self, name: str, value: object) -> None: ...  # noqa: N802 - the original's
    def reportParameter(self, name: str, value: object) -> None: ...  # noqa: N802


def autologged() -> bool:
    """Return True if every `fit` is reported."""
    return hasattr(keras.Model.fit, "__runai__")


def disableAutoLog() -> None:  # noqa: N802 - the original's
    """Stop reporting; `Reporter`'s `with` block does so at its end."""
    if autologged():
        keras.Model.fit = keras.Model.fit.__runai__


disableAutolog = disableAutoLog  # noqa: N816 - the name in the original's documentation


def autolog(
    accuracy: bool = True,  # noqa: FBT001, FBT002 - the original's, as are all
    loss: bool = True,  # noqa: FBT001, FBT002
    learning_rate: bool = True,  # noqa: FBT001, FBT002
    epoch: bool = True,  # noqa: FBT001, FBT002
    step: bool = True,  # noqa: FBT001, FBT002
    batch_size: bool = True,  # noqa: FBT001, FBT002
    overall_epochs: bool = True,  # noqa: FBT001, FBT002
    optimizer_name: bool = True,  # noqa: FBT001, FBT002
    number_of_layers: bool = True,  # noqa: FBT001, FBT002
    loss_method: bool = False,  # noqa: FBT001, FBT002
    epsilon: bool = False,  # noqa: FBT001, FBT002
    reporter: _Sink | None = None,
) -> None:
    """Report every `fit` from now on; each flag enables one name.

    `epoch` and `overall_epochs` are the progress. The accuracy is reported if the model was
    compiled with such a metric. A second call replaces the first.
    """
    enabled = {name for name, value in locals().items() if name != "reporter" and value}
    sink = reporter if reporter is not None else runai.reporter
    disableAutoLog()
    plain = keras.Model.fit
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def fit(self: keras.Model, *args: object, **kwargs: object) -> object:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        callbacks = given.arguments.get("callbacks") or []
        reported = {name: given.arguments[name] for name in ("batch_size", "epochs")}
        callback = _Reporting(sink, enabled, reported)
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(callback)
        else:
            listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
            given.arguments["callbacks"] = [*listed, callback]
        return plain(*given.args, **given.kwargs)

    fit.__runai__ = plain  # type: ignore[attr-defined] # restored by `disableAutoLog`
    keras.Model.fit = fit


class Reporter(runai.reporter.Reporter):
    """A reporter that optionally logs every `fit` during its `with` block."""

    def __init__(self, *, autolog: bool = False) -> None:
        super().__init__()
        self.autologged = False
        if autolog:
            self.autolog()

    def autolog(self, **flags: bool) -> None:
        """Report every `fit` to this reporter; flags as of the function `autolog`."""
        autolog(**flags, reporter=self)
        self.autologged = True

    def __exit__(self, *exception: object) -> None:
        if self.autologged:
            disableAutoLog()
        super().__exit__(*exception)


class _Reporting(keras.callbacks.Callback):  # type: ignore[misc] # of a library without types
    """The callback that reports one `fit`."""

    def __init__(self, sink: _Sink, enabled: set[str], given: Mapping[str, Any]) -> None:
        super().__init__()
        self._sink, self._enabled, self._given = sink, enabled, given

    def on_train_begin(self, logs: _Logs = None) -> None:  # noqa: ARG002 - Keras passes it
        self._metric("overall_epochs", self._given["epochs"])
        self._metric("batch_size", self._given["batch_size"])
        self._metric("number_of_layers", len(self.model.layers))
        self._parameter("optimizer_name", type(_plain(self.model.optimizer)).__name__)
        self._parameter("loss_method", _name(getattr(self.model, "loss", None)))
        self._parameter("epsilon", getattr(self.model.optimizer, "epsilon", None))
        self._learning_rate()

    def on_epoch_begin(self, epoch: int, logs: _Logs = None) -> None:  # noqa: ARG002 - Keras passes it
        self._metric("epoch", epoch)

    def on_train_batch_end(self, batch: int, logs: _Logs = None) -> None:
        logs = logs or {}
        self._metric("step", batch)
        self._metric("loss", logs.get("loss"))
        self._metric("accuracy", next((logs[name] for name in ACCURACIES if name in logs), None))

    def on_epoch_end(self, epoch: int, logs: _Logs = None) -> None:  # noqa: ARG002 - Keras passes it
        self._metric("epoch", epoch)
        self._learning_rate()

    def _learning_rate(self) -> None:
        rate = getattr(self.model.optimizer, "learning_rate", None)
        self._parameter("learning_rate", None if rate is None else float(rate))

    def _metric(self, name: str, value: object) -> None:
        if name in self._enabled and value is not None:
            self._sink.reportMetric(name, value)

    def _parameter(self, name: str, value: object) -> None:
        if name in self._enabled and value is not None:
            self._sink.reportParameter(name, value)


def _name(loss: object) -> object:
    """Return the name of a loss: a text, a function or an object."""
    if loss is None or isinstance(loss, str):
        return loss
    return getattr(loss, "__name__", None) or getattr(loss, "name", None) or type(loss).__name__


def _plain(optimizer: object) -> object:
    """Return the optimizer behind an accumulating one."""
    return getattr(optimizer, "plain", optimizer)
