"""Strict reading and writing of JSON objects as frozen dataclasses, field by field.

Knows how one value is checked and how an object's table of fields is applied; errors name the
object, the field and the value. Leaves the tables themselves to `wire`, its only caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, Generic, NamedTuple, TypeVar

from runai.hub_service.scheduler.quantity import MilliGpu, gpu_number, milli_gpus

T = TypeVar("T")

MOST_GPUS: Final = 1_000_000_000
"""Of anybody: sums of such amounts stay far below what stands for no bound."""
MOST_DEVICES: Final = 10_000
"""Of a node: each is looked at by itself."""


class InvalidSnapshot(ValueError):
    """A snapshot or plan in JSON breaks its format; the message is a sentence for people."""


class Field(NamedTuple):
    """How one field is read (raising ValueError with the rest of a sentence) and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    attribute: str = ""
    """Its name in Python where that differs, as `for_` does."""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse(expected: str, value: object) -> ValueError:
    return ValueError(f"must be {expected}, not {_shown(value)}")


def read_text(value: object) -> str:
    """Accept a string."""
    if type(value) is not str:
        raise _refuse("a text", value)
    return value


def read_name(value: object) -> str:
    """Accept a string that is not empty."""
    if type(value) is not str or not value:
        raise _refuse("a name", value)
    return value


def read_flag(value: object) -> bool:
    """Accept true or false."""
    if type(value) is not bool:
        raise _refuse("true or false", value)
    return value


def read_whole(value: object) -> int:
    """Accept an integer."""
    if type(value) is not int:
        raise _refuse("an integer", value)
    return value


def read_count(value: object) -> int:
    """Accept an integer from 0."""
    if type(value) is not int or value < 0:
        raise _refuse("an integer from 0 upwards", value)
    return value


def read_devices(value: object) -> int:
    """Accept how many devices a node has."""
    count = read_count(value)
    if count > MOST_DEVICES:
        raise _refuse(f"at most {MOST_DEVICES}", value)
    return count


def read_positive(value: object) -> int:
    """Accept an integer from 1."""
    if type(value) is not int or value < 1:
        raise _refuse("an integer from 1 upwards", value)
    return value


def read_gpus(value: object) -> MilliGpu:
    """Accept a decimal number of GPUs."""
    if type(value) is int and value >= 0:
        milli = MilliGpu(value * 1000)
    elif type(value) is float:
        try:
            milli = milli_gpus(value)
        except ValueError as error:
            message = f"is wrong: {error}"
            raise ValueError(message) from None
    else:
        raise _refuse("a number of GPUs from 0 upwards", value)
    if milli > 1000 * MOST_GPUS:
        raise _refuse(f"at most {MOST_GPUS} GPUs", value)
    return milli


def read_worker_gpus(value: object) -> MilliGpu:
    """Accept whole GPUs, or a fraction of one."""
    milli = read_gpus(value)
    whole, part = divmod(milli, 1000)
    if whole and part:
        raise _refuse("whole GPUs or a fraction below 1", value)
    return milli


def optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Accept null too."""
    return lambda value: None if value is None else read(value)


def one_of(*choices: str) -> Callable[[Any], str]:
    """Accept one of these words."""

    def read(value: object) -> str:
        if type(value) is not str or value not in choices:
            raise _refuse(f"one of {', '.join(choices)}", value)
        return value

    return read


def tuple_of(read: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """Accept a list of such values."""

    def read_all(value: object) -> tuple[T, ...]:
        if type(value) is not list:
            raise _refuse("a list", value)
        return tuple([read(item) for item in value])

    return read_all


def mapping_of(read: Callable[[Any], T]) -> Callable[[Any], Mapping[str, T]]:
    """Accept an object whose values are such values."""

    def read_all(value: object) -> Mapping[str, T]:
        if type(value) is not dict:
            raise _refuse("an object", value)
        return {read_name(key): read(item) for key, item in value.items()}

    return read_all


GPUS = Field(read_gpus, gpu_number)
OPTIONAL_GPUS = Field(
    optional(read_gpus), lambda milli: None if milli is None else gpu_number(milli)
)
NAMES = Field(tuple_of(read_name), list)
OPTIONAL_NAMES = Field(
    optional(tuple_of(read_name)), lambda names: None if names is None else list(names)
)
TEXTS = Field(mapping_of(read_text), dict)


class ObjectFormat(Generic[T]):
    """The format of one kind of object: its dataclass and its fields' names on the wire."""

    def __init__(self, word: str, make: type[T], table: Mapping[str, Field]) -> None:
        """Remember the table; `word` names the kind in errors."""
        self.word = word
        self.make = make
        self.table = table
        self._readers = {k: (f.attribute or k, f.read) for k, f in table.items()}
        self._defaults = {
            field.name: field.default_factory()
            if field.default_factory is not MISSING
            else field.default
            for field in fields(make)  # type: ignore[arg-type]  # T is always a dataclass
        }
        self._required = {name for name, value in self._defaults.items() if value is MISSING}

    def read(self, value: Any) -> T:  # noqa: ANN401  decoded JSON
        """Check an object and build its dataclass.

        Raises:
            InvalidSnapshot: a field is unknown, missing or wrong.
        """
        if type(value) is not dict:
            message = f"{self.word} must be an object, not {_shown(value)}"
            raise InvalidSnapshot(message)
        readers = self._readers
        given: dict[str, Any] = {}
        key = ""
        try:
            for key, item in value.items():
                attribute, read = readers[key]
                given[attribute] = read(item)
        except KeyError:
            raise InvalidSnapshot(self._unknown_fields(value)) from None
        except InvalidSnapshot:
            raise
        except ValueError as error:
            message = f"{self._named(value)}: {key} {error}"
            raise InvalidSnapshot(message) from None
        if not given.keys() >= self._required:
            missing = next(name for name in self._defaults if name in self._required - given.keys())
            message = f"{self._named(value)}: {missing} is missing"
            raise InvalidSnapshot(message)
        return self.make(**given)

    def write(self, value: T) -> dict[str, Any]:
        """Give the object's JSON without the fields that have their default."""
        written = {}
        for key, field in self.table.items():
            attribute = field.attribute or key
            item = getattr(value, attribute)
            if item != self._defaults[attribute]:
                written[key] = field.write(item)
        return written

    def _named(self, value: Mapping[str, Any]) -> str:
        name = value.get("name")
        return f"{self.word} {name}" if type(name) is str and name else self.word

    def _unknown_fields(self, value: Mapping[str, Any]) -> str:
        unknown = [str(key) for key in value if key not in self.table]
        noun = "field" if len(unknown) == 1 else "fields"
        return (
            f"{self._named(value)}: unknown {noun} {', '.join(unknown)}"
            f" (known are {', '.join(self.table)})"
        )
