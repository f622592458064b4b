"""Common parts of the wire contract: base class, name types, problem details."""

import re
from datetime import datetime
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    WithJsonSchema,
)

# Not allowed in names: controls, invisible characters and changes of the writing direction.
_HIDDEN_CHARACTERS = "\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
MOST_PID = 2**22
"""Linux's upper bound of a PID."""

PROJECT_NAME = r"^[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?$"
WORKLOAD_ID = r"^[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-.a-z0-9]{0,320}$"
"""`project/name`; the name of a pod without a Job begins with its namespace and a dot."""
ProjectName = Annotated[str, StringConstraints(pattern=PROJECT_NAME, max_length=24)]
"""A DNS label of at most 24 characters: `<project>-<name>` must fit a Kubernetes name of 63."""

WorkloadName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,36}[a-z0-9])?$", max_length=38)
]

UserName = Annotated[
    str, StringConstraints(min_length=1, max_length=255, pattern=f"^[^{_HIDDEN_CHARACTERS}/]+$")
]

Line = Annotated[str, StringConstraints(max_length=255, pattern=f"^[^{_HIDDEN_CHARACTERS}]*$")]
"""A text on one line."""

Path = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]

Argument = Annotated[str, StringConstraints(max_length=131_000, pattern=r"^[^\x00]*$")]
"""One argument of a program: Linux accepts at most 128 KiB, and no NUL."""


def _reject_timestamps(value: object) -> object:
    """Reject strings that pydantic would parse as seconds or milliseconds since 1970."""
    if isinstance(value, str) and _DAY.match(value) is None:
        raise ValueError("it must be a time such as 2026-01-31T12:00:00Z")
    return value


Time = Annotated[datetime, BeforeValidator(_reject_timestamps)]
"""A time in RFC 3339; UTC if it has no zone."""

ImageName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?(@sha256:[0-9a-f]{64})?$", max_length=512
    ),
]
"""A container image reference: [HOST[:PORT]/]PATH[:TAG][@DIGEST]."""


def _octal(value: object) -> object:
    """Return a umask in three octal digits; none takes away a right of the owner."""
    if not isinstance(value, str) or re.fullmatch("0?0[0-7]{2}", value) is None:
        raise ValueError('give three octal digits from "000" to "077", in a file in quotes')
    return value[-3:]


Umask = Annotated[
    str,
    BeforeValidator(_octal),
    WithJsonSchema({"type": "string", "pattern": "^0?0[0-7]{2}$"}, mode="validation"),
]
"""Rights that new files lack."""

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class Wire(BaseModel):
    """Base of all messages: immutable, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(Wire):
    """An error as RFC 9457 problem details; `detail` is the sentence, `hint` the way out."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
