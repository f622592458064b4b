"""Messages of protocol buffers from a table of their fields, by Google's own library.

    kinds = messages({"Node": [("ID", 1, "int64", "")]})
    kinds["Node"](ID=3).SerializeToString()

A field is a name, a number, a kind (a scalar's, or another message's) and "repeated" or "". A map
is a repeated message of a key (1) and a value (2). Used by fake kubelets and their clients.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = ("string", "int64", "bool")
_NUMBERS = itertools.count(1)


def messages(fields: Mapping[str, Sequence[tuple[str, int, str, str]]]) -> dict[str, Any]:
    """Return a class for each message, by name."""
    package = f"test{next(_NUMBERS)}"
    file = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax="proto3")
    for name, definitions in fields.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, label in definitions:
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_REPEATED if label else field.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in fields
    }
