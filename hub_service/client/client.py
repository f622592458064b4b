"""The typed client of the API: `Client` waits, `AsyncClient` is awaited; the same names on both.

Each method is a call of `calls`, sent. Errors are RunaiErrors; what can be repeated is, for
PATIENCE_S.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import wraps
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from runai.hub_service.client import calls
from runai.hub_service.client.calls import NEXT_PAGES, Call, Stream, Which
from runai.hub_service.client.connection import find_connection
from runai.hub_service.client.transport import AsyncTransport, Transport
from runai.hub_service.wire.schemas import SubmitReply, SubmitRequest, WorkloadView

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 5.0
"""How long a call is tried again while the service is away: longer than its restart takes."""


class _Sent(Generic[P, T]):
    """A method of both faces: makes a call and returns its reply, awaited or not."""

    def __init__(self, call: Callable[P, Call[T]]) -> None:
        self._call = call

    @overload
    def __get__(self, face: "Client", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, face: "AsyncClient", owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, face: Any, owner: type) -> Any:
        return self._call if face is None else _after(self._call, face.transport.send)


class _Received(Generic[P, T]):
    """A method of both faces: asks for a stream and yields its items."""

    def __init__(self, stream: Callable[P, Stream[T]]) -> None:
        self._stream = stream

    @overload
    def __get__(self, face: "Client", owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, face: "AsyncClient", owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, face: Any, owner: type) -> Any:
        return self._stream if face is None else _after(self._stream, face.transport.receive)


def _after(make: Callable[..., Any], send: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(make)
    def method(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  those of the call
        return send(make(*args, **kwargs))

    return method


class _Face:
    """What both faces share: where the service is, the project when none is named, all calls."""

    whoami = _Sent(calls.whoami)
    overview = _Sent(calls.overview)
    events = _Received(calls.events)
    projects = _Sent(calls.projects)
    project = _Sent(calls.project)
    put_project = _Sent(calls.put_project)
    delete_project = _Sent(calls.delete_project)
    workload_page = _Sent(calls.workload_page)
    workload = _Sent(calls.workload)
    wait = _Sent(calls.wait)
    suspend = _Sent(calls.suspend)
    resume = _Sent(calls.resume)
    scale = _Sent(calls.scale)
    keep = _Sent(calls.keep)
    release = _Sent(calls.release)
    regain = _Sent(calls.regain)
    delete = _Sent(calls.delete)
    attach = _Sent(calls.attach)
    environment = _Sent(calls.environment)
    logs = _Received(calls.logs)
    execute = _Received(calls.execute)
    usage = _Sent(calls.usage)
    usage_by = _Sent(calls.usage_by)
    history = _Sent(calls.history)
    snapshot = _Sent(calls.snapshot)
    nodes = _Sent(calls.nodes)
    explanation = _Sent(calls.explanation)
    what_if = _Sent(calls.what_if)
    plan = _Sent(calls.plan)
    report = _Sent(calls.report)

    def __init__(
        self,
        url: str,
        token: str,
        *,
        default_project: str | None = None,
        patience_s: float = PATIENCE_S,
        ca: str | None = None,
    ) -> None:
        """Call the service at `url` as the token's owner; `ca` is a file as of `login --ca`."""
        self.default_project = default_project
        self._connect(url, token, patience_s, ca)

    def _connect(self, url: str, token: str, patience_s: float, ca: str | None) -> None:
        raise NotImplementedError

    @classmethod
    def discover(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Find the service: this session's, else the one of `runai login`.

        Raises:
            Unavailable: neither is known.
        """
        found = find_connection() if environ is None else find_connection(environ)
        return cls(found.url, found.token, default_project=found.project, ca=found.ca)

    def _submission(self, request: SubmitRequest, *, dry_run: bool) -> Call[SubmitReply]:
        if request.project is None and self.default_project is not None:
            request = request.model_copy(update={"project": self.default_project})
        return calls.submit(request, dry_run=dry_run)


class Client(_Face):
    """Call the service and wait for its answer. Safe to use from several threads."""

    def _connect(self, url: str, token: str, patience_s: float, ca: str | None) -> None:
        self.transport = Transport(url, token, patience_s, ca)
        self.url = self.transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def submit(self, request: SubmitRequest, *, dry_run: bool = False) -> SubmitReply:
        """Submit a job or a session, or say what would come of it."""
        return self.transport.send(self._submission(request, dry_run=dry_run))

    def workloads(
        self, which: Which | None = None, *, project: str | None = None, user: str | None = None
    ) -> list[WorkloadView]:
        """Return all workloads that the caller may see, oldest first, page by page."""
        which = which or Which(project, user)
        page = self.workload_page(which, limit=NEXT_PAGES)
        found = page.items
        while page.next_token is not None:
            page = self.workload_page(which, page.next_token, NEXT_PAGES)
            found += page.items
        return found


class AsyncClient(_Face):
    """The same calls, awaited. Cancelling one closes its connection."""

    def _connect(self, url: str, token: str, patience_s: float, ca: str | None) -> None:
        self.transport = AsyncTransport(url, token, patience_s, ca)
        self.url = self.transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def submit(self, request: SubmitRequest, *, dry_run: bool = False) -> SubmitReply:
        """Submit a job or a session, or say what would come of it."""
        return await self.transport.send(self._submission(request, dry_run=dry_run))

    async def workloads(
        self, which: Which | None = None, *, project: str | None = None, user: str | None = None
    ) -> list[WorkloadView]:
        """Return all workloads that the caller may see, oldest first, page by page."""
        which = which or Which(project, user)
        page = await self.workload_page(which, limit=NEXT_PAGES)
        found = page.items
        while page.next_token is not None:
            page = await self.workload_page(which, page.next_token, NEXT_PAGES)
            found += page.items
        return found
