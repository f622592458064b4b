"""Temporary replacement of a function in a module or class."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self


class Hook:
    """A replacement of `module.method` by `hook`, or by a subclass's `__hook__`.

    Within the hook that name calls the original, unless `recursion` is set; the original is
    `__original__`.
    """

    def __init__(
        self,
        module: object,
        method: str,
        hook: Callable[..., Any] | None = None,
        recursion: bool = False,  # noqa: FBT001, FBT002 - the original's
    ) -> None:
        """Set the target and its replacement; `enable` applies it."""
        self.module, self.method, self.recursion = module, method, recursion
        self.hook: Callable[..., Any] = hook or self.__hook__
        self.__original__: Callable[..., Any] = getattr(module, method)
        self._inside = threading.local()

    def enable(self) -> None:
        """Replace the function until `disable`."""

        def call(*args: object, **kwargs: object) -> object:
            if getattr(self._inside, "depth", 0) and not self.recursion:
                return self.__original__(*args, **kwargs)
            self._inside.depth = getattr(self._inside, "depth", 0) + 1
            try:
                return self.hook(*args, **kwargs)
            finally:
                self._inside.depth -= 1

        setattr(self.module, self.method, call)

    def disable(self) -> None:
        """Restore the original."""
        setattr(self.module, self.method, self.__original__)

    def __enter__(self) -> Self:
        self.enable()
        return self

    def __exit__(self, *exception: object) -> None:
        self.disable()

    def __hook__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a subclass's choice
        """Run in place of the original; subclasses implement it."""
        raise NotImplementedError(f"{type(self).__name__} has neither a hook nor a __hook__.")
