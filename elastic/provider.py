"""Notice the original library beside ours: both are called `runai`, and parts of ours are hidden.

Knows that our `runai` is a namespace, without an `__init__.py`. `runai doctor` looks closer.
Called when `runai.elastic` is imported.
"""

from __future__ import annotations

import warnings
from types import ModuleType


class AnotherProviderWarning(UserWarning):
    """Another library provides `runai`; which of the two is imported is chance."""


def look_for_another(namespace: ModuleType) -> None:
    """Warn if the package `runai` is a file of somebody else."""
    origin = namespace.__file__
    if origin is not None:
        warnings.warn(
            f"{origin}: another library provides `runai` and hides parts of ours; that of PyPI has"
            " the names that ours has. pip uninstall runai && pip install --force-reinstall"
            " --no-deps jupyter-runai",
            AnotherProviderWarning,
            stacklevel=3,
        )
