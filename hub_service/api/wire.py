"""What the messages of the wire contract have in common: their base, their names, their errors."""

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

__all__ = [
    "EnvName",
    "Gpus",
    "ImageName",
    "PositiveInt",
    "Problem",
    "ProjectName",
    "UserName",
    "Wire",
    "WorkloadName",
]

ProjectName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,22}[a-z0-9])?$", max_length=24)
]
"""A DNS label of at most 24 characters: `<project>-<name>` must fit a Kubernetes name of 63."""

WorkloadName = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]{0,36}[a-z0-9])?$", max_length=38)
]

UserName = Annotated[
    str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/]+$")
]

Gpus = Annotated[Decimal, Field(ge=0, le=100_000, decimal_places=3, allow_inf_nan=False)]
"""GPUs of one worker or of a project; whole, or below 1 a fraction (the service checks which)."""

PositiveInt = Annotated[int, Field(ge=1)]

ImageName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?(@sha256:[0-9a-f]{64})?$", max_length=512
    ),
]
"""A container image as registries know it: [HOST[:PORT]/]PATH[:TAG][@DIGEST]."""

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class Wire(BaseModel):
    """A message: no unknown fields, no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(Wire):
    """An error as RFC 9457 problem details; `detail` is the sentence, `hint` the way out."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
