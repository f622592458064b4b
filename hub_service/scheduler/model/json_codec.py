"""Strict JSON codecs for frozen dataclasses, derived from their type hints.

Errors name the object, the field and the value. Handwritten, because the scheduler depends on the
standard library only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from runai.hub_service.scheduler.model.quantity import (
    MAX_DEVICES,
    Count,
    DeviceCount,
    Mib,
    MilliGpu,
    Name,
    Positive,
    PositiveMib,
    WorkerGpus,
    gpu_number,
    milli_gpus,
)

T = TypeVar("T")

MAX_GPUS: Final = 1_000_000_000
"""Upper bound of any GPU amount, so that sums of amounts stay far below `UNLIMITED`."""


class InvalidSnapshot(ValueError):
    """Malformed snapshot or plan in JSON; the message is a sentence for users."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, for the `object_pairs_hook` of `json.loads`.

    >>> unique_keys([("quota", 2), ("limit", 3)])
    {'quota': 2, 'limit': 3}

    Raises:
        InvalidSnapshot: a key is there twice, of which `json` would keep the last.
    """
    decoded = dict(pairs)
    if len(decoded) < len(pairs):
        [(duplicate, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise InvalidSnapshot(f"{duplicate!r} is there twice in one object")
    return decoded


class FieldCodec(NamedTuple):
    """Reader and writer of one field; `read` raises ValueError with the end of a sentence."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def _clipped(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wrong_value(expected: str, value: object) -> ValueError:
    return ValueError(f"must be {expected}, not {_clipped(value)}")


def _scalar_reader(
    expected: str, kind: type, minimum: int | str | None = None
) -> Callable[[Any], Any]:
    """Return a reader of values of exactly one type; `expected` names it in errors."""

    def read(value: Any) -> Any:  # noqa: ANN401  decoded JSON
        # Compare the exact type: bool is a subclass of int, but true is no number here.
        if type(value) is not kind or (minimum is not None and value < minimum):  # type: ignore[operator]  # of one kind
            raise _wrong_value(expected, value)
        return value

    return read


_read_name = _scalar_reader("a name", str, "\0")  # "\0" is the smallest text that is not empty
_read_count = _scalar_reader("an integer from 0 upwards", int, 0)
_read_positive = _scalar_reader("an integer from 1 upwards", int, 1)


def _read_devices(value: Any) -> int:  # noqa: ANN401  decoded JSON
    count: int = _read_count(value)
    if count > MAX_DEVICES:
        raise _wrong_value(f"at most {MAX_DEVICES}", value)
    return count


def _read_gpus(value: object) -> MilliGpu:
    if type(value) is int and value >= 0:
        milli = MilliGpu(value * 1000)
    elif type(value) is float:
        try:
            milli = milli_gpus(value)
        except ValueError as error:
            message = f"is wrong: {error}"
            raise ValueError(message) from None
    else:
        raise _wrong_value("a number of GPUs from 0 upwards", value)
    if milli > 1000 * MAX_GPUS:
        raise _wrong_value(f"at most {MAX_GPUS} GPUs", value)
    return milli


def _read_worker_gpus(value: object) -> MilliGpu:
    milli = _read_gpus(value)
    whole, part = divmod(milli, 1000)
    if whole and part:
        raise _wrong_value("whole GPUs or a fraction below 1", value)
    return milli


def _choice_reader(choices: Mapping[Any, Any]) -> Callable[[object], Any]:
    def read(value: object) -> Any:  # noqa: ANN401  the choice's own type
        if type(value) is not str or value not in choices:
            raise _wrong_value(f"one of {', '.join(choices)}", value)
        return choices[value]

    return read


def _identity(value: Any) -> Any:  # noqa: ANN401  any JSON
    return value


CODECS: dict[Any, FieldCodec] = {
    str: FieldCodec(_scalar_reader("a text", str), _identity),
    Name: FieldCodec(_read_name, _identity),
    bool: FieldCodec(_scalar_reader("true or false", bool), _identity),
    int: FieldCodec(_scalar_reader("an integer", int), _identity),
    Count: FieldCodec(_read_count, _identity),
    Mib: FieldCodec(_read_count, _identity),
    DeviceCount: FieldCodec(_read_devices, _identity),
    Positive: FieldCodec(_read_positive, _identity),
    PositiveMib: FieldCodec(_read_positive, _identity),
    MilliGpu: FieldCodec(_read_gpus, gpu_number),
    WorkerGpus: FieldCodec(_read_worker_gpus, gpu_number),
}
"""Codecs by type hint. Modules register dataclasses whose JSON differs from their fields."""


def codec_of(hint: Any) -> FieldCodec:  # noqa: ANN401  any type hint
    """Return the codec of a type hint, deriving it on first use."""
    if hint not in CODECS:
        CODECS[hint] = _derive(hint)
    return CODECS[hint]


def _derive(hint: Any) -> FieldCodec:  # noqa: ANN401  any type hint
    """Build the codec of a literal, enum, tuple, mapping, union or dataclass."""
    origin, args = get_origin(hint), get_args(hint)
    is_union = origin in (Union, UnionType)
    # The enum in a quota's union stands for a field that is absent from the JSON.
    parts = [p for p in args if p is not NoneType and not _is_enum(p)] if is_union else [hint]
    literals = [word for p in parts if get_origin(p) is Literal for word in get_args(p)]
    if literals:
        field = FieldCodec(_choice_reader({word: word for word in literals}), _identity)
    elif _is_enum(hint):
        choices = {choice.value: choice for choice in hint}
        field = FieldCodec(_choice_reader(choices), lambda it: it.value)
    elif origin is tuple:
        field = _tuple_of(codec_of(args[0]))
    elif origin is Mapping:
        field = _mapping_of(codec_of(args[1]))
    elif is_union:
        field = _optional(codec_of(parts[0])) if len(parts) == 1 else _tagged(parts)
    else:
        codec: DataclassCodec[Any] = DataclassCodec(hint)
        field = FieldCodec(codec.read, codec.write)
    return field


def _is_enum(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _optional(field: FieldCodec) -> FieldCodec:
    read, write = field
    return FieldCodec(
        lambda value: None if value is None else read(value),
        lambda value: None if value is None else write(value),
    )


def _tuple_of(field: FieldCodec) -> FieldCodec:
    read, write = field

    def read_all(value: object) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _wrong_value("a list", value)
        return tuple([read(item) for item in value])

    return FieldCodec(
        read_all, list if write is _identity else lambda items: [write(i) for i in items]
    )


def _mapping_of(field: FieldCodec) -> FieldCodec:
    read, write = field

    def read_all(value: object) -> Mapping[str, Any]:
        if type(value) is not dict:
            raise _wrong_value("an object", value)
        return {_read_name(key): read(item) for key, item in value.items()}

    return FieldCodec(read_all, lambda table: {key: write(item) for key, item in table.items()})


def _tagged(choices: Iterable[Any]) -> FieldCodec:
    """Return the codec of a union of dataclasses, which the field `kind` tells apart."""
    by_kind = {choice.kind: codec_of(choice) for choice in choices}
    read_kind = _choice_reader({kind: kind for kind in by_kind})

    def read(value: Any) -> Any:  # noqa: ANN401  decoded JSON, one of the choices
        payload = dict(value) if type(value) is dict else {}
        try:
            kind = read_kind(payload.pop("kind", None))
        except ValueError as error:
            message = f"a kind {error}"
            raise InvalidSnapshot(message) from None
        return by_kind[kind].read(payload)

    return FieldCodec(read, lambda value: {"kind": value.kind, **by_kind[value.kind].write(value)})


class DataclassCodec(Generic[T]):
    """JSON codec of one dataclass."""

    def __init__(self, make: type[T]) -> None:
        """Derive the field codecs from the type hints."""
        kind = getattr(make, "kind", None)
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", make.__name__).lower()
        # A str is the class variable `kind`; a slot descriptor means a field of that name.
        self.word = kind if isinstance(kind, str) else words
        self.make = make
        hints = get_type_hints(make, include_extras=True)
        self._fields: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {}
        """Attribute, reader and writer by JSON key."""
        self._defaults: dict[str, Any] = {}
        for field in fields(make):  # type: ignore[arg-type]  # T is always a dataclass
            # `for` is a keyword of Python, so the attribute is `for_`.
            read, write = codec_of(hints[field.name])
            self._fields[field.name.rstrip("_")] = field.name, read, write
            factory = field.default_factory
            self._defaults[field.name] = field.default if factory is MISSING else factory()
        self._required = {name for name, value in self._defaults.items() if value is MISSING}

    def read(self, value: Any) -> T:  # noqa: ANN401  decoded JSON
        """Validate an object and build its dataclass.

        Raises:
            InvalidSnapshot: a field is unknown, missing or wrong.
        """
        if type(value) is not dict:
            message = f"{self.word} must be an object, not {_clipped(value)}"
            raise InvalidSnapshot(message)
        values: dict[str, Any] = {}
        key = ""
        try:
            for key, item in value.items():
                attribute, read, _ = self._fields[key]
                values[attribute] = read(item)
        except KeyError:
            raise InvalidSnapshot(self._unknown_fields(value)) from None
        except InvalidSnapshot:
            raise
        except ValueError as error:
            message = f"{self._label(value)}: {key} {error}"
            raise InvalidSnapshot(message) from None
        if not values.keys() >= self._required:
            missing = next(n for n in self._defaults if n in self._required - values.keys())
            message = f"{self._label(value)}: {missing} is missing"
            raise InvalidSnapshot(message)
        return self.make(**values)

    def write(self, value: T) -> dict[str, Any]:
        """Return the object as JSON, without fields that have their default."""
        written = {}
        for key, (attribute, _, write) in self._fields.items():
            item = getattr(value, attribute)
            if item != self._defaults[attribute]:
                written[key] = write(item)
        return written

    def _label(self, value: Mapping[str, Any]) -> str:
        """Return what errors call an object: its word, and its name if it has one."""
        name = value.get("name")
        return f"{self.word} {name}" if type(name) is str and name else self.word

    def _unknown_fields(self, value: Mapping[str, Any]) -> str:
        unknown = [str(key) for key in value if key not in self._fields]
        noun = "field" if len(unknown) == 1 else "fields"
        return (
            f"{self._label(value)}: unknown {noun} {', '.join(unknown)}"
            f" (known are {', '.join(self._fields)})"
        )
