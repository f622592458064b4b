"""Checks of the installation: missing frameworks, and another library called `runai`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType


class NamespaceConflictWarning(UserWarning):
    """Warning that another library provides `runai`; the import order is undefined."""


def warn_of_conflict(namespace: ModuleType) -> None:
    """Warn if another library provides the package `runai`.

    Ours is a namespace package, without an `__init__.py`.
    """
    origin = namespace.__file__
    if origin is not None:
        warnings.warn(
            f"{origin}: another library provides `runai` and hides parts of ours; that of PyPI has"
            " the names that ours has. pip uninstall runai && pip install --force-reinstall"
            " --no-deps jupyter-runai",
            NamespaceConflictWarning,
            stacklevel=3,
        )


def needs_torch() -> AbstractContextManager[None]:
    """Return a context that names the extra to install if PyTorch is missing."""
    return _needs("torch", {"torch": "PyTorch"})


def needs_keras() -> AbstractContextManager[None]:
    """Return a context that names the extra to install if Keras or TensorFlow is missing."""
    return _needs("keras", {"keras": "keras", "tensorflow": "tensorflow"})


@contextmanager
def _needs(extra: str, names: Mapping[str, str]) -> Iterator[None]:
    """Name the extra to install if one of these modules is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (name := names.get(error.name or "")) is None:
            raise
        raise ModuleNotFoundError(
            f"{name} is not installed: pip install jupyter-runai[{extra}]",
            name=error.name,
        ) from None
