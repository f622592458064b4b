"""Programs of workloads, and others beside them: process, environment, what they write.

Part of the wire contract, known by `schemas`.
"""

from typing import Annotated

from pydantic import Base64Bytes, Field

from runai.hub_service.wire.base_schema import MOST_PID, Argument, Wire

MOST_INPUT_BYTES = 4 * 2**20
"""What a program may be handed on; of a body it is the larger half, in base 64."""


class ExecRequest(Wire):
    """A program with its arguments, and all that it is to read."""

    command: Annotated[list[Argument], Field(min_length=1, max_length=1000)]
    stdin: Annotated[Base64Bytes, Field(max_length=MOST_INPUT_BYTES)] = b""
    """In base 64."""


class ExecPiece(Wire):
    """Some of what a program wrote, in base 64, or how it ended: the last one."""

    stdout: Base64Bytes = b""
    stderr: Base64Bytes = b""
    exit_code: int | None = None
    why: str = ""
    """Why it never began; "" where it did."""


class ProcessReport(Wire):
    """The process of a session that the spawner has started."""

    pid: Annotated[int, Field(ge=2, le=MOST_PID)]
    created: Annotated[float, Field(ge=0, le=1e11)]


class EnvironmentView(Wire):
    """The environment that hands a worker its devices (owner and spawner only)."""

    environment: dict[str, str]
    workdir: str = ""


class LogLine(Wire):
    """One line of a log stream."""

    worker: int
    attempt: int
    text: str
