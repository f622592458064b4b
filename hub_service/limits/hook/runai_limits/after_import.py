"""Callbacks after the import of a module, at any time and from any code.

A finder at the front of `sys.meta_path` watches a few names; other imports cost one look-up more.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as type checkers know it: importing `typing` would cost every start
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def swallowed(what: str, act: Callable[..., Any], *arguments: Any) -> None:  # noqa: ANN401
    """Call a function and suppress its errors; write them to stderr if RUNAI_DEBUG is set."""
    try:
        act(*arguments)
    except Exception as error:  # noqa: BLE001  a program must run without us
        if os.environ.get("RUNAI_DEBUG"):
            sys.stderr.write(f"runai: {what}: {error!r}\n")


class ImportWatch:
    """An import finder that runs a callback after the import of each watched module."""

    def __init__(self, callbacks: dict[str, Callable[[ModuleType], None]]) -> None:
        """Watch these module names; run the callback now for modules imported already."""
        self._callbacks = callbacks
        sys.meta_path.insert(0, self)
        for name in list(callbacks):
            if name in sys.modules:
                swallowed(name, callbacks.pop(name), sys.modules[name])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401
        """Find a watched module by the other finders, with a loader that runs the callback."""
        if name not in self._callbacks:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                None if finder is self or find is None else find(name, path, target)
            )
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _CallbackLoader(spec.loader, self._imported)  # type: ignore[assignment]
                return spec
        return None

    def _imported(self, module: ModuleType) -> None:
        # Dropped after the import, not in `find_spec`: programs also call that without importing,
        # to see if a framework is installed.
        callback = self._callbacks.pop(module.__name__, None)
        if callback is not None:
            callback(module)


class _CallbackLoader:
    """The module's own loader, followed by the callback."""

    def __init__(self, loader: Any, callback: Callable[[ModuleType], None]) -> None:  # noqa: ANN401
        self._loader = loader
        self._callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Restore the module's own loader: its code must not see this one.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        swallowed(module.__name__, self._callback, module)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._loader, name)
