"""The request for a workload, with everything that a user is told about each of its fields.

A field's `RequestOption` gives its names, help, unit and hint. Command line, magics,
`widgets.submit()`, the page's form and the spawn form are made of it (`request_fields`), as are
`docs/cli.md` and the errors: a new option is one field here.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import Field, StringConstraints, model_validator
from pydantic.fields import FieldInfo

from runai.hub_service.wire.amounts import (
    MEMORY,
    MOST_WORKERS,
    NUMBER,
    AmountKind,
    Cpus,
    GpuMemory,
    Gpus,
    Grace,
    Memory,
    Priority,
    Seconds,
    WorkerCount,
)
from runai.hub_service.wire.base_schema import (
    Argument,
    EnvName,
    ImageName,
    Line,
    Path,
    ProjectName,
    UserName,
    Wire,
    WorkloadName,
)
from runai.hub_service.wire.program_schemas import CodeNote, EnvironmentNote, UmaskNote

MOST_PROGRAM_BYTES: Final = 2**20
"""Maximum size of a command and its environment; Linux accepts twice as much."""

_FLAG: Final = re.compile(r"--[a-z-]+")

Executor = Literal["kubernetes", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOption:
    """What a user is told about one field of a request, on every surface that has it."""

    help: str
    flags: tuple[str, ...] = ()
    """Names on the command line and in magics; none: they have no option for it."""
    original: str = ""
    """One more flag: the option's name in the original `runai`."""
    keyword: str = ""
    """Name in Python; "": the field's."""
    metavar: str = ""
    """Placeholder of a text; amounts and numbers have their own."""
    flag_value: str = ""
    """Value of an option without one, such as `--interactive`."""
    label: str = ""
    """Label in the page's form; "": the form has no such field."""
    form_help: str = ""
    """Help in forms, where they take the value in another way; "": the same."""
    example: str = ""
    """Example of a value in forms."""
    choices: tuple[str, ...] = ()
    """The values that forms offer; none: they take a text."""
    in_spawn_form: tuple[Executor, ...] = ()
    """Executors with it in JupyterHub's spawn form: KubeSpawner has CPUs and memory of its own."""
    hint: str = ""
    """The way out of an invalid value, where the requirement alone does not say it."""
    only_on: Executor | None = None
    """The executor that the field is for; elsewhere it is refused."""
    elsewhere: str = ""
    """The way out there."""


class SubmitRequest(Wire):
    """Request for a job, or (the spawner, `--interactive`) a session.

    Without `project`: the caller's only project, or their default, else an error that lists their
    projects. Without `gpus` and `gpu_memory_mib`: no GPU. Only the spawner sets `owner` and
    `server`.
    """

    name: Annotated[
        WorkloadName | None,
        RequestOption(
            help="Name the job. Default: the next free job-N.",
            label="Name",
            hint="Use small letters, digits and '-', beginning and ending with a letter or digit;"
            " at most 38.",
        ),
    ] = None
    """None: the service picks `<job|session>-<n>`."""
    command: Annotated[list[Argument], Field(min_length=1, max_length=10_000)] | None = None
    """The program and its arguments; None only for a session that the spawner starts."""
    gpus: Annotated[
        Gpus | None,
        RequestOption(
            flags=("-g", "--gpus"),
            original="--gpu",
            help="Request GPUs for each worker (0.5, 1, 4). Default: none.",
            label="GPUs",
            example="0.5",
        ),
    ] = None
    gpu_memory_mib: Annotated[
        GpuMemory | None,
        RequestOption(
            flags=("--gpu-memory",),
            keyword="gpu_memory",
            help="Request memory of one GPU (4G) instead of --gpus.",
            label="GPU memory",
            example="4G",
        ),
    ] = None
    gpu_type: Annotated[
        Line | None,
        RequestOption(
            flags=("--gpu-type",),
            metavar="NAME,...",
            help="Run only on GPUs of these types (words of a type's name, such as A100), the first"
            " preferred. Default: any.",
            label="GPU type",
            example="A100",
            in_spawn_form=("kubernetes", "local"),
            hint="Name it by words of its name, such as A100; `runai list nodes` shows the types.",
        ),
    ] = None
    """GPU types in order of preference, separated by commas: words of each name, such as A100, or
    all of it; None: any."""
    cpu: Annotated[
        Cpus | None,
        RequestOption(
            flags=("--cpu",),
            help="Request CPUs for each worker (0.5, 4). Default: 1 without a GPU. Least: 0.1"
            " without a whole GPU.",
            label="CPUs",
            example="4",
            in_spawn_form=("local",),
        ),
    ] = None
    """CPUs of each worker; None: none beside a GPU, else the platform's default.

    On one machine 0.1 without a whole GPU, if less is named.
    """
    memory_mib: Annotated[
        Memory | None,
        RequestOption(
            flags=("--memory",),
            keyword="memory",
            help="Request main memory for each worker (16G). Default: 1G without a GPU.",
            label="Memory",
            example="16G",
            in_spawn_form=("local",),
        ),
    ] = None
    """Main memory of each worker; None: as for `cpu`. On one machine 64 without a whole GPU."""
    project: Annotated[
        ProjectName | None,
        RequestOption(
            flags=("-p", "--project"),
            metavar="NAME",
            help="Use the quota of this project. Default: the session's, the one of `runai project"
            " use`, or your only one.",
            hint="Use small letters, digits and '-', beginning and ending with a letter or digit;"
            " at most 24.",
        ),
    ] = None
    kind: Annotated[
        Literal["job", "session"],
        RequestOption(
            flags=("--interactive",),
            keyword="interactive",
            flag_value="session",
            help="Start a session, which uses the build quota and is never preempted.",
        ),
    ] = "job"
    preemptible: Annotated[
        bool | None,
        RequestOption(
            flags=("--preemptible",), help="Let a session be preempted (with --interactive)."
        ),
    ] = None
    """None: True for a job, False for a session."""
    workers: Annotated[
        WorkerCount,
        RequestOption(
            flags=("--workers",),
            help="Start this many processes together, each with its --gpus.",
            label="Workers",
        ),
    ] = 1
    elastic: Annotated[
        bool,
        RequestOption(
            flags=("--elastic",),
            help="Add idle GPUs while the job runs, and return them on demand: up to all of a node"
            " for one process with --gpus, or one GPU for each of the --workers.",
            label="Elastic",
        ),
    ] = False
    """Whether the number of GPUs follows the free capacity at run time (docs/elastic.md)."""
    min_workers: Annotated[
        WorkerCount | None,
        RequestOption(
            flags=("--min-workers",),
            help="Start with this many of the --workers. Default: all, or 1 with --elastic.",
            label="Least workers",
        ),
    ] = None
    """None: all workers (a gang), or 1 for an elastic job."""
    guaranteed_workers: Annotated[
        WorkerCount | None,
        RequestOption(
            flags=("--guaranteed-workers",),
            help="Start this many workers within the quota only, safe from other projects"
            " (with --elastic).",
            label="Guaranteed workers",
        ),
    ] = None
    """Workers of an elastic job that wait for the quota, and that no other project takes."""
    saves: Annotated[
        bool,
        RequestOption(
            flags=("--saves",),
            help="Declare that the job saves its work at SIGTERM and resumes from there, so that it"
            " is paused first and may move. An elastic job with reporting workers does not need"
            " it.",
            label="Saves its work",
        ),
    ] = False
    """Whether it saves its work when it is paused, and goes on from there."""
    array: Annotated[
        WorkerCount | None,
        RequestOption(
            flags=("--array",),
            help="Submit this many jobs, numbered from 0 by RUNAI_ARRAY_INDEX.",
            label="Array",
        ),
    ] = None
    priority: Annotated[
        Priority,
        RequestOption(
            flags=("--priority",),
            help="Set the priority in the project's queue, the highest first. Default: normal.",
            label="Priority",
            choices=("low", "normal", "high"),
        ),
    ] = "normal"
    env: Annotated[
        dict[EnvName, Argument],
        RequestOption(
            flags=("-e", "--env"),
            original="--environment",
            help="Set an environment variable. NAME alone passes your own value, hidden from the"
            " list of processes. May be repeated.",
            label="Variables",
            form_help="Set environment variables, one on each line.",
            example="NAME=VALUE",
            hint="Give it as NAME=VALUE.",
        ),
    ] = Field({}, max_length=1000)
    no_environment: Annotated[
        bool,
        RequestOption(
            flags=("--no-environment",),
            help="Do not pass on the active Python environment, PATH, language and time zone, as"
            " submissions on the service's machine and in its notebooks do.",
        ),
    ] = False
    workdir: Annotated[
        Path,
        RequestOption(
            flags=("--workdir",),
            original="--working-dir",
            metavar="DIR",
            help="Run the program in this directory. Default: the current one.",
        ),
    ] = ""
    backoff_limit: Annotated[
        int,
        Field(ge=0, le=100),
        NUMBER,
        RequestOption(
            flags=("--backoff-limit",),
            help="Retry this often after a failure, each time after a longer wait.",
            label="Retries",
        ),
    ] = 0
    grace_seconds: Annotated[
        Grace,
        RequestOption(
            flags=("--grace",),
            help="Allow this long between SIGTERM and SIGKILL, for a checkpoint.",
            label="Grace period",
            example="2m",
        ),
    ] = 30
    expected_runtime: Annotated[
        Seconds | None,
        RequestOption(
            flags=("--expected-runtime",),
            help="Estimate the run time, so that other users see when the GPUs become free.",
            label="Expected run time",
            example="2h",
        ),
    ] = None
    """The user's estimate from start to end: seconds, or text such as 2h."""
    max_runtime: Annotated[
        Seconds | None,
        RequestOption(
            flags=("--time",),
            help="Stop it for good after this much running time (30s, 20m, 8h), without"
            " pauses. With a short limit it may start sooner. Default: the project's.",
            label="Ends after",
            example="8h",
            in_spawn_form=("kubernetes", "local"),
        ),
    ] = None
    """Limit of its running, pauses not counted: seconds, or text such as 8h; null: the project's.

    It is stopped for good then (`timed_out`).
    """
    image: Annotated[
        ImageName | None,
        RequestOption(
            flags=("--image",),
            original="-i",
            metavar="NAME",
            help="Run this container image (on Kubernetes). Default: your notebook's.",
            label="Image",
            example="quay.io/jupyter/pytorch-notebook:latest",
            hint="Name it as docker pull does, such as quay.io/jupyter/pytorch-notebook:latest.",
            only_on="kubernetes",
            elsewhere="Leave it out: what your notebook has installed is there.",
        ),
    ] = None
    source: Annotated[str, StringConstraints(max_length=1_000_000)] = ""
    code: CodeNote | None = None
    """The code as its user has it now; None: unknown."""
    umask: UmaskNote | None = None
    """The umask with which its user submits; None: unknown."""
    environment: EnvironmentNote | None = None
    """Variables of the submission's own environment; the service decides whether it takes them."""
    owner: UserName | None = None
    server: Line = ""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Reject requests that exhaust the platform's memory or that exec(2) cannot pass on."""
        if self.workers * (self.array or 1) > MOST_WORKERS:
            raise ValueError(f"ask for at most {MOST_WORKERS} workers at once")
        taken = self.environment.variables if self.environment else {}
        words = [*(self.command or ()), *self.env, *self.env.values(), *taken.values()]
        if sum(len(word.encode()) for word in words) > MOST_PROGRAM_BYTES:
            raise ValueError("command and env may have 1 MiB together: put the rest into a file")
        return self


class RequestField(NamedTuple):
    """A field that users set, with its option and type."""

    name: str
    option: RequestOption
    default: Any
    kind: AmountKind | None
    """Parser of an amount; None: it is none."""
    bounds: tuple[int, int] | None
    """Bounds of a whole number; None: it is none."""
    is_flag: bool
    is_mapping: bool

    @property
    def keyword(self) -> str:
        """Return its name in Python."""
        return self.option.keyword or self.name

    def typed(self, value: object) -> object:
        """Return a value that a person gave: a bare number is no memory, 4 may mean gigabytes."""
        return str(value) if self.kind is MEMORY else value

    @property
    def label(self) -> str:
        """Return its name in forms."""
        return self.option.label or self.option.flags[-1]

    @property
    def spawn_name(self) -> str:
        """Return its name among the user options of JupyterHub: its flag's."""
        return self.option.flags[-1].lstrip("-").replace("-", "_")


@cache  # each submission asks, too
def request_fields() -> tuple[RequestField, ...]:
    """Return the fields of a request that users set, in the order of the help."""
    return tuple(
        _request_field(name, info, option)
        for name, info in SubmitRequest.model_fields.items()
        for option in info.metadata
        if isinstance(option, RequestOption)
    )


def option_of(field_name: str) -> RequestOption:
    """Return what a user is told about one field."""
    return next(field.option for field in request_fields() if field.name == field_name)


def form_help_texts() -> dict[str, str]:
    """Return the help of each field in forms."""
    texts = help_texts(lambda field: field.label)
    return texts | {f.name: f.option.form_help for f in request_fields() if f.option.form_help}


def help_texts(name_of: Callable[[RequestField], str]) -> dict[str, str]:
    """Return the help of each field, with the other fields' names as a surface has them."""
    fields = request_fields()
    names = {field.option.flags[-1]: name_of(field) for field in fields if field.option.flags}
    return {
        field.name: _FLAG.sub(lambda flag: names.get(flag[0], flag[0]), field.option.help)
        for field in fields
    }


def _request_field(name: str, info: FieldInfo, option: RequestOption) -> RequestField:
    metadata = [*info.metadata, *_metadata_of(info.annotation)]
    lowest: Any = next((each.ge for each in metadata if isinstance(each, Ge)), None)
    highest: Any = next((each.le for each in metadata if isinstance(each, Le)), None)
    kind = next((each for each in metadata if isinstance(each, AmountKind)), None)
    types = {info.annotation, *get_args(info.annotation)}
    return RequestField(
        name,
        option,
        info.get_default(call_default_factory=True),
        kind,
        (lowest, highest) if kind is None and lowest is not None and highest is not None else None,
        bool in types or bool(option.flag_value),
        get_origin(info.annotation) is dict,
    )


def _metadata_of(annotation: Any) -> Iterator[object]:  # noqa: ANN401  any type
    """Yield the metadata of `Annotated` types inside a type, such as the bounds of an int."""
    for each in getattr(annotation, "__metadata__", ()):
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)
    for inner in get_args(annotation):
        yield from _metadata_of(inner)
