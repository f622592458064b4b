"""Attributes for a while: set in a `with` block, gone after it.

Knows nothing but the object it is given. Exported under the original library's name.
"""

from __future__ import annotations

from typing import Self


def rename(obj: object, old: str, new: str) -> None:
    """Give an attribute another name.

    Raises:
        AttributeError: if there is none of the old name.
    """
    setattr(obj, new, getattr(obj, old))
    delattr(obj, old)


class Attribute:
    """Set an attribute, or a list of them, in a `with` block.

    What an attribute was before is there again after the block (the original library deleted it).
    """

    def __init__(self, obj: object, name: str | list[str], value: object) -> None:
        """Name the object, its attributes and what they are to be.

        Raises:
            ValueError: if one is a list and the other is none, or of another length.
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
