"""The API's requests as values: route, reply type and retries; no I/O.

The clients of `client` have a method of the same name for each function here. Decoders parse the
two kinds of streams, newline-delimited JSON and server-sent events.
"""

import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from random import SystemRandom
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from runai.hub_service.wire import explanation_schemas, reports, schemas
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import InvalidRequest, RunaiError, TooMany, Unavailable
from runai.hub_service.wire.program_schemas import (
    EnvironmentView,
    ExecPiece,
    ExecRequest,
    LogLine,
    ProcessReport,
)
from runai.hub_service.wire.usage_schemas import PastWorkload, UsageKind, UsageOf, UsageSeries
from runai.hub_service.wire.validation import check_project_name, check_text, check_workload_id
from runai.hub_service.wire.workload_request import SubmitRequest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_JITTER = SystemRandom()
"""Not the global generator: a notebook may have seeded that one, and this runs in threads."""

API = "api/v1"
ANSWER_WITHIN_S = 15.0
"""Time-out of calls, except long polls; longer than any of them takes."""
FIRST_PAGE, NEXT_PAGES = 200, 2000
"""Workloads per page: for a page on display, and for reading all pages."""
THOUGHT_WITHIN_S = 60.0
"""Time-out of questions that the scheduler computes, one after the other."""
SILENCE_S = 45.0
"""Streams send a heartbeat every 15 s: three missed ones mean a broken connection."""


@cache
def _adapter(reply: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", reply))


def _read(reply: type[T], body: bytes) -> T:
    """Parse a reply; raise RunaiError if it has another form."""
    adapter = _adapter(cast("Hashable", reply))
    try:
        # A newer service may send fields that this client does not have.
        value: T = adapter.validate_json(body, extra="ignore")
    except ValidationError as error:
        raise RunaiError(
            "The GPU service answered in a form that this client does not know.",
            hint="Bring both to the same version: pip install --upgrade jupyter-runai.",
            code="unknown_reply",
        ) from error
    return value


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and the type of its reply."""

    method: str
    path: str
    reply: type[T]
    """NoneType: the reply has no body."""
    params: Mapping[str, str] = field(default_factory=dict)
    body: BaseModel | None = None
    repeatable: bool = True
    """Whether the request is idempotent."""
    timeout_s: float = ANSWER_WITHIN_S
    headers: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes | None:
        """Return the body without the unset fields."""
        if self.body is None:
            return None
        return self.body.model_dump_json(exclude_unset=True).encode()

    def read(self, body: bytes) -> T:
        """Parse the reply."""
        if self.reply is type(None):
            return None
        return _read(self.reply, body)


class Decoder(Protocol[T_co]):
    """Incremental parser of a stream."""

    def feed(self, chunk: bytes) -> Iterator[T_co]:
        """Yield the items that this chunk completes."""


@dataclass(frozen=True, slots=True)
class Stream(Generic[T]):
    """A request with a streamed reply; `restartable` ones reconnect after a broken connection.

    A request with a body has side effects and is never sent twice.
    """

    path: str
    decoder: Callable[[], Decoder[T]]
    params: Mapping[str, str] = field(default_factory=dict)
    restartable: bool = False
    body: BaseModel | None = None


THROTTLED_PATIENCE_S = 60.0
"""Maximum total wait after rejections for load or a rate limit."""


class Retries:
    """Delays between attempts: exponential backoff with jitter, until patience ends.

    A delay is never shorter than the service's `Retry-After`.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.start_over()

    def start_over(self) -> None:
        """Reset the backoff after a success."""
        self._left_s = self._patience_s
        self._throttled_left_s = max(self._patience_s, THROTTLED_PATIENCE_S)
        self._next_s = 0.2

    def delay(self, error: Unavailable) -> float:
        """Return the seconds to wait, and deduct them; raise the error if patience has ended."""
        if isinstance(error, TooMany) or error.code == "busy":
            wait_s = error.retry_after * _JITTER.uniform(1.0, 1.5)
            if wait_s > self._throttled_left_s or self._patience_s <= 0:
                raise error
            self._throttled_left_s -= wait_s
            return wait_s
        if self._left_s <= 0:
            raise error
        wait_s = min(self._next_s * _JITTER.uniform(0.5, 1.0), self._left_s)
        wait_s = max(wait_s, min(error.retry_after, self._patience_s))
        self._left_s -= wait_s
        self._next_s = min(2 * self._next_s, 4.0)
        return wait_s


class _Lines:
    """Splitter at line feeds only: `str.splitlines` splits inside JSON strings (U+2028)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


class _JsonLines(Generic[T]):
    """Decoder of newline-delimited JSON; an empty line is a heartbeat."""

    item: type[T]

    def __init__(self) -> None:
        self._lines = _Lines()

    def feed(self, chunk: bytes) -> Iterator[T]:
        """Yield the items that this chunk completes."""
        for line in self._lines.feed(chunk):
            if line.strip():
                yield _read(self.item, line)


class LogDecoder(_JsonLines[LogLine]):
    """Decoder of log lines."""

    item = LogLine


class ExecDecoder(_JsonLines[ExecPiece]):
    """Decoder of a program's output and its exit code."""

    item = ExecPiece


class OverviewDecoder:
    """Decoder of server-sent `overview` events; lines that begin with a colon are heartbeats."""

    def __init__(self) -> None:
        self._lines = _Lines()
        self._event = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[schemas.Overview]:
        """Yield the overviews that this chunk completes."""
        for raw in self._lines.feed(chunk):
            name, _, value = raw.rstrip(b"\r").partition(b":")
            match name:
                case b"event":
                    self._event = value.strip()
                case b"data":
                    self._data.append(value.removeprefix(b" "))
                case b"" if not value:
                    if self._event == b"overview" and self._data:
                        yield _read(schemas.Overview, b"\n".join(self._data))
                    self._event, self._data = b"", []


# -- the calls -----------------------------------------------------------------------------------


def _params(given: Iterable[tuple[str, object]]) -> dict[str, str]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else check_text(name, str(value))
        for name, value in given
        if value is not None
    }


def _project(name: str) -> str:
    return f"{API}/projects/{check_project_name(name)}"


class Identified(Protocol):
    """A workload that was seen: calls about it are refused for a later one of the same name."""

    @property
    def id(self) -> str:
        """Return `project/name`."""

    @property
    def uid(self) -> str:
        """Return its identity; "" if it is not known."""


@dataclass(frozen=True, slots=True)
class WorkloadIdentity:
    """The id and the uid of a workload that was seen, without the rest."""

    id: str
    uid: str


Named = str | Identified
"""A workload: `project/name` as a person types it, or one that was seen."""


def _workload(workload: Named) -> str:
    name = workload if isinstance(workload, str) else workload.id
    return f"{API}/workloads/{check_workload_id(name)}"


def _query(workload: Named, *more: tuple[str, object]) -> dict[str, str]:
    """Return the query with the uid of a workload that was seen."""
    uid = "" if isinstance(workload, str) else workload.uid
    return _params([("uid", uid or None), *more])


def whoami() -> Call[schemas.WhoAmI]:
    """Return the identity of the token's owner."""
    return Call("GET", f"{API}/whoami", schemas.WhoAmI)


def overview() -> Call[schemas.Overview]:
    """Return a snapshot of all that the caller may see."""
    return Call("GET", f"{API}/overview", schemas.Overview)


def events() -> Stream[schemas.Overview]:
    """Yield an overview at once and after each change; reconnect after failures."""
    return Stream(f"{API}/events", OverviewDecoder, restartable=True)


def projects() -> Call[list[schemas.ProjectView]]:
    """Return all projects with their shares in this cycle."""
    return Call("GET", f"{API}/projects", list[schemas.ProjectView])


def project(name: str) -> Call[schemas.ProjectView]:
    """Return one project."""
    return Call("GET", _project(name), schemas.ProjectView)


def put_project(name: str, change: schemas.ProjectPut) -> Call[schemas.ProjectView]:
    """Create a project, or change the given fields of an existing one."""
    return Call("PUT", _project(name), schemas.ProjectView, body=change)


def delete_project(name: str) -> Call[None]:
    """Delete a project that has no unfinished workloads."""
    return Call("DELETE", _project(name), type(None))


def end_memberships(user: str) -> Call[None]:
    """Remove a user from the members and admins of all projects; for the hub."""
    return Call("DELETE", f"{API}/members/{quote(user, safe='')}", type(None))


@dataclass(frozen=True, slots=True)
class WorkloadFilter:
    """Filter for a list of workloads; None matches all."""

    project: str | None = None
    user: str | None = None
    state: str | None = None
    kind: str | None = None
    text: str | None = None
    """Substring of `project/name` or of the user."""
    manageable: bool | None = None
    """True: only workloads that the caller may suspend, resume and delete."""


def workload_page(
    which: WorkloadFilter, after: str | None = None, limit: int = FIRST_PAGE
) -> Call[schemas.WorkloadPage]:
    """Return a page of workloads, and counts over all pages.

    `after` is the previous page's `next_token`.
    """
    criteria = [(each.name, getattr(which, each.name)) for each in fields(which)]
    params = _params([*criteria, ("limit", limit), ("continue", after)])
    return Call("GET", f"{API}/workloads", schemas.WorkloadPage, params)


def workload(workload: Named) -> Call[schemas.WorkloadDetail]:
    """Return one workload by its id, `project/name`."""
    return Call("GET", _workload(workload), schemas.WorkloadDetail, _query(workload))


def wait(
    workload: Named, changed_from: str, timeout_s: float = 30.0
) -> Call[schemas.WorkloadDetail]:
    """Return the workload once its version differs from `changed_from`, or after the time-out."""
    return Call(
        "GET",
        _workload(workload),
        schemas.WorkloadDetail,
        _query(workload, ("changed_from", changed_from), ("timeout", timeout_s)),
        timeout_s=timeout_s + ANSWER_WITHIN_S,
    )


def submit(request: SubmitRequest, *, dry_run: bool = False) -> Call[schemas.SubmitReply]:
    """Submit a job or a session; with `dry_run` only predict the decision."""
    params = {"dry_run": "true"} if dry_run else {}
    return Call(
        "POST",
        f"{API}/workloads",
        schemas.SubmitReply,
        params,
        body=request,
        # The service recognises retries by this key, so that a lost reply can be requested again.
        headers={"Idempotency-Key": secrets.token_hex(16)},
    )


NOTES = {"code", "umask", "environment", "no_environment"}
"""Fields of a submission without which an older service does as well."""


def without_notes(request: SubmitRequest, refused: InvalidRequest) -> SubmitRequest:
    """Return a request for a service that does not know one of its fields.

    Raises:
        InvalidRequest: it was refused for something else.
    """
    given = request.model_fields_set
    if refused.code != "unknown_field" or not given & NOTES:
        raise refused
    return request.model_construct(**{name: getattr(request, name) for name in given - NOTES})


def suspend(workload: Named) -> Call[schemas.WorkloadDetail]:
    """Suspend a job: remove it from the queue, and stop it if it runs."""
    return Call("POST", f"{_workload(workload)}/suspend", schemas.WorkloadDetail, _query(workload))


def resume(workload: Named) -> Call[schemas.WorkloadDetail]:
    """Return a suspended job to its place in the queue."""
    return Call("POST", f"{_workload(workload)}/resume", schemas.WorkloadDetail, _query(workload))


def scale(workload: Named, asked: schemas.ScaleRequest) -> Call[schemas.WorkloadDetail]:
    """Change the bounds on an elastic job's number of workers."""
    return Call(
        "POST", f"{_workload(workload)}/scale", schemas.WorkloadDetail, _query(workload), asked
    )


def keep(workload: Named) -> Call[schemas.WorkloadDetail]:
    """Extend the allocation of idle GPUs by 30 minutes."""
    return Call("POST", f"{_workload(workload)}/keep", schemas.WorkloadDetail, _query(workload))


def release(workload: Named) -> Call[schemas.WorkloadDetail]:
    """Release a session's GPUs; it continues without them."""
    return Call("POST", f"{_workload(workload)}/release", schemas.WorkloadDetail, _query(workload))


def regain(workload: Named) -> Call[schemas.WorkloadDetail]:
    """Request GPUs again for a session that released them."""
    return Call("POST", f"{_workload(workload)}/regain", schemas.WorkloadDetail, _query(workload))


def delete(workload: Named) -> Call[None]:
    """Stop a workload if it runs, and delete it."""
    return Call("DELETE", _workload(workload), type(None), _query(workload))


def attach(workload: Named, process: ProcessReport) -> Call[schemas.WorkloadDetail]:
    """Register the process of a started session."""
    return Call(
        "PUT", f"{_workload(workload)}/process", schemas.WorkloadDetail, _query(workload), process
    )


def environment(workload: Named, worker: int = 0) -> Call[EnvironmentView]:
    """Return the environment variables that select a worker's devices."""
    return Call(
        "GET",
        f"{_workload(workload)}/environment",
        EnvironmentView,
        _query(workload, ("worker", worker)),
    )


def logs(
    workload: Named,
    *,
    worker: int | None = None,
    tail: int | None = None,
    follow: bool = False,
    parts: bool = False,
) -> Stream[LogLine]:
    """Yield its workers' log lines; `follow` continues until the workload finishes.

    With `parts` a line that has not ended comes in parts (`log_lines` joins them).
    """
    switches = [("follow", "true" if follow else None), ("parts", "true" if parts else None)]
    params = _query(workload, ("worker", worker), ("tail", tail), *switches)
    return Stream(f"{_workload(workload)}/logs", LogDecoder, params)


def execute(workload: Named, run: ExecRequest, worker: int = 0) -> Stream[ExecPiece]:
    """Run a program beside a worker; yield its output and its exit code."""
    params = _query(workload, ("worker", worker))
    return Stream(f"{_workload(workload)}/exec", ExecDecoder, params, body=run)


def usage(
    *,
    workload: str | None = None,
    project: str | None = None,
    user: str | None = None,
    node: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    step_s: int | None = None,
) -> Call[UsageSeries]:
    """Return allocation and utilization over a range (default: the last hour)."""
    given = [
        ("workload", workload),
        ("project", project),
        ("user", user),
        ("node", node),
        ("since", since),
        ("until", until),
        ("step_s", step_s),
    ]
    return Call("GET", f"{API}/usage", UsageSeries, _params(given))


def usage_by(
    kind: UsageKind, *, since: datetime | None = None, until: datetime | None = None
) -> Call[list[UsageOf]]:
    """Return averages of each visible project, user or node (default: the last hour)."""
    given = [("since", since), ("until", until)]
    return Call("GET", f"{API}/usage/by/{kind}", list[UsageOf], _params(given))


def history(since: datetime) -> Call[list[PastWorkload]]:
    """Return all workloads with allocations after a time; for hub admins."""
    return Call("GET", f"{API}/history", list[PastWorkload], _params([("since", since)]))


def snapshot() -> Call[dict[str, Any]]:
    """Return nodes, projects and policy in the snapshot format; for hub admins."""
    return Call("GET", f"{API}/snapshot", dict[str, Any])


def nodes() -> Call[list[NodeView]]:
    """Return the nodes and their devices."""
    return Call("GET", f"{API}/nodes", list[NodeView])


def plan() -> Call[dict[str, Any]]:
    """Return the last plan's decisions about workloads that the caller may see."""
    return Call("GET", f"{API}/plan", dict[str, Any])


def explanation(workload: Named) -> Call[explanation_schemas.ExplanationView]:
    """Return why a workload waits, which changes would start it, and its expected start."""
    return Call(
        "GET",
        f"{_workload(workload)}/explanation",
        explanation_schemas.ExplanationView,
        _query(workload),
        timeout_s=THOUGHT_WITHIN_S,
    )


def what_if(question: explanation_schemas.PlanQuestion) -> Call[explanation_schemas.WhatIf]:
    """Return the workloads that would start, stop or wait after hypothetical changes."""
    return Call(
        "POST", f"{API}/plan", explanation_schemas.WhatIf, body=question, timeout_s=THOUGHT_WITHIN_S
    )


def report(report: reports.AgentReport) -> Call[reports.AgentReply]:
    """Send an agent's samples; return the allocations to measure next."""
    # No retries: a repeated report would count twice; a lost one is a gap of a second.
    path = f"{API}/nodes/{quote(report.node, safe='')}/samples"
    return Call("POST", path, reports.AgentReply, body=report, repeatable=False, timeout_s=5.0)
