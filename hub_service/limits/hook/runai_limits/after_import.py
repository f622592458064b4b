"""Call something when a module has been imported, whoever imports it and whenever.

A finder in front of the others that watches a few names and costs the rest one look-up. Called by
`start`.
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
    """Do it; an error is nobody's but ours, and told only where somebody asked for it."""
    try:
        act(*arguments)
    except Exception as error:  # noqa: BLE001  a program must run without us
        if os.environ.get("RUNAI_DEBUG"):
            sys.stderr.write(f"runai: {what}: {error!r}\n")


class Watch:
    """A finder of `sys.meta_path`."""

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        """Watch for these names; those that are imported already have their turn now."""
        self._then = then
        sys.meta_path.insert(0, self)
        for name in list(then):
            if name in sys.modules:
                swallowed(name, then.pop(name), sys.modules[name])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401
        """Let the others find it; have ours called after its code has run."""
        if name not in self._then:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                None if finder is self or find is None else find(name, path, target)
            )
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._imported)  # type: ignore[assignment]
                return spec
        return None

    def _imported(self, module: ModuleType) -> None:
        # Only now: many look for a framework just to know whether it is there.
        then = self._then.pop(module.__name__, None)
        if then is not None:
            then(module)


class _Loader:
    """The loader that was found, and what comes after it."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:  # noqa: ANN401
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module looks as it does without us.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        swallowed(module.__name__, self._then, module)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._loader, name)
