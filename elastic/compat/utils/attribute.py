"""Temporary attributes: set in a `with` block, restored after it."""

from __future__ import annotations

from typing import Self


def rename(obj: object, old: str, new: str) -> None:
    """Rename an attribute.

    Raises:
        AttributeError: if the old name does not exist.
    """
    setattr(obj, new, getattr(obj, old))
    delattr(obj, old)


class Attribute:
    """Temporary attributes of an object, set in a `with` block.

    The block's end restores previous values (the original library deleted them).
    """

    def __init__(self, obj: object, name: str | list[str], value: object) -> None:
        """Set the object, the names of attributes, and their values.

        Raises:
            ValueError: unless names and values are both single or lists of equal length.
        """
        names = name if isinstance(name, list) else [name]
        values = value if isinstance(value, list) and isinstance(name, list) else [value]
        if isinstance(name, list) != isinstance(value, list) or len(names) != len(values):
            raise ValueError(
                f"{name!r} and {value!r}: a name has one value, a list of names a list."
            )
        self.obj, self.name, self.value = obj, name, value
        self._new = dict(zip(names, values, strict=True))
        self._old: dict[str, object] = {}

    def __enter__(self) -> Self:
        own = vars(self.obj)
        self._old = {name: own[name] for name in self._new if name in own}
        for name, value in self._new.items():
            setattr(self.obj, name, value)
        return self

    def __exit__(self, *exception: object) -> None:
        for name in self._new:
            if name in self._old:
                setattr(self.obj, name, self._old[name])
            else:
                delattr(self.obj, name)
