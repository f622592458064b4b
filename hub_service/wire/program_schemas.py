"""The wire contract of programs in workloads: exec, process, environment, logs."""

from typing import Annotated

from pydantic import Base64Bytes, Field, StringConstraints

from runai.hub_service.wire.amounts import NUMBER
from runai.hub_service.wire.base_schema import MOST_PID, Argument, EnvName, Path, Wire

MOST_INPUT_BYTES = 4 * 2**20
"""Maximum standard input of a program; most of a request's body once in base 64."""


class ExecRequest(Wire):
    """Request to run a program with its arguments and its whole standard input."""

    command: Annotated[list[Argument], Field(min_length=1, max_length=1000)]
    stdin: Annotated[Base64Bytes, Field(max_length=MOST_INPUT_BYTES)] = b""
    """In base 64."""


class ExecPiece(Wire):
    """A chunk of a program's output in base 64. The last chunk has its exit code."""

    stdout: Base64Bytes = b""
    stderr: Base64Bytes = b""
    exit_code: int | None = None
    why: str = ""
    """Why the program did not start; "" if it did."""


Digest = Annotated[
    str, StringConstraints(pattern=r"^([0-9a-f]{64}|gone|over 16 MiB|no file|not readable)$")
]
"""SHA-256 of a file, or why it has none."""


class CodeNote(Wire):
    """Code of a job: digests of the files that its command names, and its folder's commit."""

    files: dict[Path, Digest] = Field({}, max_length=3)
    commit: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})?$")] = ""
    """Commit of the git repository around its working directory; "" without one."""


class StartNote(CodeNote):
    """Code of a start, and the Python that runs it."""

    python: Path = ""
    """Path of the interpreter; "": the program is none, or not known."""


MachineDigest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""Digest of a machine's id and its boot's."""


class EnvironmentNote(Wire):
    """The variables of a submission's shell or notebook that choose programs and languages."""

    variables: dict[EnvName, Argument] = Field({}, max_length=100)
    machine: MachineDigest | None = None
    """None: the system does not tell."""
    uid: Annotated[int | None, Field(ge=0, le=2**32 - 1), NUMBER] = None
    """Account of the client's process."""
    in_session: bool = False
    """Whether it comes from a user's default server of this hub, which has the image of jobs."""


class UmaskNote(Wire):
    """The umask of a client's process, with its account and machine."""

    umask: Annotated[str, StringConstraints(pattern=r"^[0-7]{3,4}$")]
    uid: Annotated[int, Field(ge=0, le=2**32 - 1), NUMBER]
    machine: MachineDigest


class CodeView(CodeNote):
    """Code of a job, with a text."""

    text: str
    """ "train.py 6a1f0c2b9d34, commit 013d839d046b"."""


def code_text(submitted: CodeView | None, started: CodeView | None) -> str:
    """Return the code of a job's last start, and the submitted one if it differs; "" for none."""
    if submitted is None or started is None:
        return f"{submitted.text}, as submitted" if submitted else started.text if started else ""
    same = (submitted.files, submitted.commit) == (started.files, started.commit)
    return f"{started.text}, {'as submitted' if same else f'submitted as {submitted.text}'}"


class ProcessReport(Wire):
    """The process of a session that the spawner started."""

    pid: Annotated[int, Field(ge=2, le=MOST_PID), NUMBER]
    created: Annotated[float, Field(ge=0, le=1e11), NUMBER]


class EnvironmentView(Wire):
    """Environment variables that select a worker's devices (owner and spawner only)."""

    environment: dict[str, str]
    workdir: str = ""
    umask: str = ""
    """Three octal digits; "": not known."""


class MissingOutput(Wire):
    """Amount of output that is not kept; null: not known."""

    lines: int | None = None
    bytes: int | None = None

    def __str__(self) -> str:
        """Return it as a line between those of the program."""
        if self.lines is None or self.bytes is None:
            return "… output before this is not kept …"
        power = max(0, min((self.bytes.bit_length() - 1) // 10, 3))
        size = f"{self.bytes >> 10 * power:,} {('bytes', 'KiB', 'MiB', 'GiB')[power]}"
        if self.lines == 1:
            return f"… 1 line ({size}) is not kept …"
        return f"… {self.lines:,} lines ({size}) are not kept …"


class LogLine(Wire):
    """One line of a log stream."""

    worker: int
    attempt: int
    text: str
    missing: MissingOutput | None = None
    """Output that is not kept here; `text` says so, and is no line of the program."""
    part: bool = False
    """True if the line has not ended: the worker's next text of this attempt continues it."""
