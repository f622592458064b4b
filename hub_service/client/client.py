"""Typed clients of the API: `Client` blocks, `AsyncClient` is awaited; both have the same methods.

Each method sends a call of `calls`. Errors are RunaiErrors; idempotent calls are retried for
PATIENCE_S.
"""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import wraps
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from runai.hub_service.client import calls
from runai.hub_service.client.calls import NEXT_PAGES, Call, Stream, WorkloadFilter
from runai.hub_service.client.connection import ConnectionSource, find_connection
from runai.hub_service.client.transport import AsyncTransport, Transport
from runai.hub_service.wire.errors import InvalidRequest, NotFound
from runai.hub_service.wire.schemas import SubmitReply, WorkloadView
from runai.hub_service.wire.workload_request import SubmitRequest

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_S = 5.0
"""Time for retries while the service is down; longer than its restart takes."""


class _CallMethod(Generic[P, T]):
    """Descriptor of a method that sends a call and returns its reply."""

    def __init__(self, call: Callable[P, Call[T]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(
        self, client: "AsyncClient", owner: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self._call if client is None else _bind(self._call, client.transport.send)


class _StreamMethod(Generic[P, T]):
    """Descriptor of a method that opens a stream and yields its items."""

    def __init__(self, stream: Callable[P, Stream[T]]) -> None:
        self._stream = stream

    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self._stream if client is None else _bind(self._stream, client.transport.receive)


def _bind(make: Callable[..., Any], send: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(make)
    def method(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  arguments of the call
        return send(make(*args, **kwargs))

    return method


class _BaseClient:
    """Common part of both clients: address, default project and all calls."""

    whoami = _CallMethod(calls.whoami)
    overview = _CallMethod(calls.overview)
    events = _StreamMethod(calls.events)
    projects = _CallMethod(calls.projects)
    project = _CallMethod(calls.project)
    put_project = _CallMethod(calls.put_project)
    delete_project = _CallMethod(calls.delete_project)
    end_memberships = _CallMethod(calls.end_memberships)
    workload_page = _CallMethod(calls.workload_page)
    workload = _CallMethod(calls.workload)
    wait = _CallMethod(calls.wait)
    suspend = _CallMethod(calls.suspend)
    resume = _CallMethod(calls.resume)
    scale = _CallMethod(calls.scale)
    keep = _CallMethod(calls.keep)
    release = _CallMethod(calls.release)
    regain = _CallMethod(calls.regain)
    delete = _CallMethod(calls.delete)
    attach = _CallMethod(calls.attach)
    environment = _CallMethod(calls.environment)
    logs = _StreamMethod(calls.logs)
    execute = _StreamMethod(calls.execute)
    usage = _CallMethod(calls.usage)
    usage_by = _CallMethod(calls.usage_by)
    history = _CallMethod(calls.history)
    snapshot = _CallMethod(calls.snapshot)
    nodes = _CallMethod(calls.nodes)
    explanation = _CallMethod(calls.explanation)
    what_if = _CallMethod(calls.what_if)
    plan = _CallMethod(calls.plan)
    report = _CallMethod(calls.report)

    def __init__(
        self,
        url: str,
        token: str,
        *,
        default_project: str | None = None,
        patience_s: float = PATIENCE_S,
        ca: str | None = None,
        source: ConnectionSource | None = None,
    ) -> None:
        """Connect to the service at `url` with a token. `ca` is a file as for `login --ca`.

        A refused token is looked up once more in the `source`; None: it has no other.
        """
        self.default_project = default_project
        self._connect(url, token, patience_s, ca, source)

    def _connect(
        self,
        url: str,
        token: str,
        patience_s: float,
        ca: str | None,
        source: ConnectionSource | None,
    ) -> None:
        raise NotImplementedError

    @classmethod
    def discover(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return a client for this session's service, else for the one of `runai login`.

        Raises:
            Unavailable: neither is configured.
        """
        environ = os.environ if environ is None else environ
        found, source = find_connection(environ), ConnectionSource(environ)
        return cls(
            found.url, found.token, default_project=found.project, ca=found.ca, source=source
        )

    def _submission(self, request: SubmitRequest, *, dry_run: bool) -> Call[SubmitReply]:
        if request.project is None and self.default_project is not None:
            request = request.model_copy(update={"project": self.default_project})
        return calls.submit(request, dry_run=dry_run)

    def _has_explicit_project(self, request: SubmitRequest) -> bool:
        """Return True unless the default was used: one that does not exist here is no default."""
        return request.project is not None or self.default_project is None


class Client(_BaseClient):
    """Blocking client; thread-safe."""

    def _connect(
        self,
        url: str,
        token: str,
        patience_s: float,
        ca: str | None,
        source: ConnectionSource | None,
    ) -> None:
        self.transport = Transport(url, token, patience_s, ca, source)
        self.url = self.transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def submit(self, request: SubmitRequest, *, dry_run: bool = False) -> SubmitReply:
        """Submit a job or a session; with `dry_run` only predict the decision."""
        try:
            return self._submit(request, dry_run=dry_run)
        except InvalidRequest as refused:
            return self._submit(calls.without_notes(request, refused), dry_run=dry_run)

    def _submit(self, request: SubmitRequest, *, dry_run: bool) -> SubmitReply:
        try:
            return self.transport.send(self._submission(request, dry_run=dry_run))
        except NotFound:
            if self._has_explicit_project(request):
                raise
            return self.transport.send(calls.submit(request, dry_run=dry_run))

    def workloads(
        self,
        which: WorkloadFilter | None = None,
        *,
        project: str | None = None,
        user: str | None = None,
    ) -> list[WorkloadView]:
        """Return all workloads that the caller may see, oldest first, page by page."""
        which = which or WorkloadFilter(project, user)
        page = self.workload_page(which, limit=NEXT_PAGES)
        items = page.items
        while page.next_token is not None:
            page = self.workload_page(which, page.next_token, NEXT_PAGES)
            items += page.items
        return items


class AsyncClient(_BaseClient):
    """Client for asyncio. Cancelling a call closes its connection."""

    def _connect(
        self,
        url: str,
        token: str,
        patience_s: float,
        ca: str | None,
        source: ConnectionSource | None,
    ) -> None:
        self.transport = AsyncTransport(url, token, patience_s, ca, source)
        self.url = self.transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def submit(self, request: SubmitRequest, *, dry_run: bool = False) -> SubmitReply:
        """Submit a job or a session; with `dry_run` only predict the decision."""
        try:
            return await self._submit(request, dry_run=dry_run)
        except InvalidRequest as refused:
            return await self._submit(calls.without_notes(request, refused), dry_run=dry_run)

    async def _submit(self, request: SubmitRequest, *, dry_run: bool) -> SubmitReply:
        try:
            return await self.transport.send(self._submission(request, dry_run=dry_run))
        except NotFound:
            if self._has_explicit_project(request):
                raise
            return await self.transport.send(calls.submit(request, dry_run=dry_run))

    async def workloads(
        self,
        which: WorkloadFilter | None = None,
        *,
        project: str | None = None,
        user: str | None = None,
    ) -> list[WorkloadView]:
        """Return all workloads that the caller may see, oldest first, page by page."""
        which = which or WorkloadFilter(project, user)
        page = await self.workload_page(which, limit=NEXT_PAGES)
        items = page.items
        while page.next_token is not None:
            page = await self.workload_page(which, page.next_token, NEXT_PAGES)
            items += page.items
        return items
