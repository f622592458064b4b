"""The typed client of the API: `Client` waits, `AsyncClient` is awaited; the same names on both.

Only `Client` asks for the past. Errors are RunaiErrors; what can be repeated is, for PATIENCE_S.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Any, Self

from runai.hub_service import calls
from runai.hub_service.api.device_schemas import NodeView
from runai.hub_service.api.program_schemas import (
    EnvironmentView,
    ExecPiece,
    ExecRequest,
    LogLine,
    ProcessReport,
)
from runai.hub_service.api.questions import ExplanationView, PlanQuestion, WhatIf
from runai.hub_service.api.reports import AgentReply, AgentReport
from runai.hub_service.api.schemas import (
    Overview,
    PastWorkload,
    ProjectPut,
    ProjectView,
    ScaleRequest,
    SubmitReply,
    SubmitRequest,
    WhoAmI,
    WorkloadDetail,
    WorkloadPage,
    WorkloadView,
)
from runai.hub_service.api.usage_schemas import UsageKind, UsageOf, UsageSeries
from runai.hub_service.calls import FIRST_PAGE, NEXT_PAGES, Which
from runai.hub_service.connection import find_connection
from runai.hub_service.transport import AsyncTransport, Transport

PATIENCE_S = 5.0
"""How long a call is tried again while the service is away: longer than its restart takes."""


class _Face:
    """What both faces share: where the service is, and the project when none is named."""

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

    def _with_project(self, request: SubmitRequest) -> SubmitRequest:
        if request.project is None and self.default_project is not None:
            return request.model_copy(update={"project": self.default_project})
        return request


class Client(_Face):
    """Call the service and wait for its answer. Safe to use from several threads."""

    def _connect(self, url: str, token: str, patience_s: float, ca: str | None) -> None:
        self._transport = Transport(url, token, patience_s, ca)
        self.url = self._transport.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def whoami(self) -> WhoAmI:
        """Return who the service takes the token's owner for."""
        return self._transport.send(calls.whoami())

    def overview(self) -> Overview:
        """Return everything that the caller may see, at one instant."""
        return self._transport.send(calls.overview())

    def events(self) -> Iterator[Overview]:
        """Yield an overview at once and after each change; broken connections are renewed."""
        return self._transport.receive(calls.events())

    def projects(self) -> list[ProjectView]:
        """Return all projects with this cycle's shares."""
        return self._transport.send(calls.projects())

    def project(self, name: str) -> ProjectView:
        """Return one project."""
        return self._transport.send(calls.project(name))

    def put_project(self, name: str, change: ProjectPut) -> ProjectView:
        """Create a project, or change the fields that are set."""
        return self._transport.send(calls.put_project(name, change))

    def delete_project(self, name: str) -> None:
        """Delete a project that has no unfinished workloads."""
        self._transport.send(calls.delete_project(name))

    def workload_page(
        self, which: Which, after: str | None = None, limit: int = FIRST_PAGE
    ) -> WorkloadPage:
        """Return a page of workloads, after the token of the one before, and counts of all."""
        return self._transport.send(calls.workload_page(which, limit, after))

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

    def workload(self, workload: str) -> WorkloadDetail:
        """Return one workload by its id, `project/name`."""
        return self._transport.send(calls.workload(workload))

    def wait(self, workload: str, changed_from: str, timeout_s: float = 30.0) -> WorkloadDetail:
        """Return the workload when its version differs from `changed_from`, or when time is up."""
        return self._transport.send(calls.wait(workload, changed_from, timeout_s))

    def submit(self, request: SubmitRequest, *, dry_run: bool = False) -> SubmitReply:
        """Submit a job or a session, or say what would come of it."""
        return self._transport.send(calls.submit(self._with_project(request), dry_run=dry_run))

    def suspend(self, workload: str) -> WorkloadDetail:
        """Take a job out of the queue, stopping it if it runs."""
        return self._transport.send(calls.suspend(workload))

    def resume(self, workload: str) -> WorkloadDetail:
        """Put a suspended job back into its place in the queue."""
        return self._transport.send(calls.resume(workload))

    def scale(self, workload: str, asked: ScaleRequest) -> WorkloadDetail:
        """Let an elastic job have more or fewer workers."""
        return self._transport.send(calls.scale(workload, asked))

    def keep(self, workload: str) -> WorkloadDetail:
        """Keep idle GPUs for 30 more minutes."""
        return self._transport.send(calls.keep(workload))

    def release(self, workload: str) -> WorkloadDetail:
        """Give a session's GPUs to others; it goes on without them."""
        return self._transport.send(calls.release(workload))

    def regain(self, workload: str) -> WorkloadDetail:
        """Ask for a released session's GPUs again."""
        return self._transport.send(calls.regain(workload))

    def delete(self, workload: str) -> None:
        """Stop a workload if it runs, and forget it."""
        self._transport.send(calls.delete(workload))

    def attach(self, workload: str, process: ProcessReport) -> WorkloadDetail:
        """Tell which process a granted session is."""
        return self._transport.send(calls.attach(workload, process))

    def environment(self, workload: str, worker: int = 0) -> EnvironmentView:
        """Return the environment that hands a worker its devices."""
        return self._transport.send(calls.environment(workload, worker))

    def logs(
        self,
        workload: str,
        *,
        worker: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> Iterator[LogLine]:
        """Yield what its workers wrote; `follow` goes on until the workload is finished."""
        return self._transport.receive(calls.logs(workload, worker, tail, follow=follow))

    def execute(self, workload: str, run: ExecRequest, worker: int = 0) -> Iterator[ExecPiece]:
        """Run a program beside a worker; yield what it writes, and how it ended."""
        return self._transport.receive(calls.execute(workload, run, worker))

    def usage(
        self,
        *,
        workload: str | None = None,
        project: str | None = None,
        user: str | None = None,
        node: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
    ) -> UsageSeries:
        """Return allocation and utilization over a range (default: the last hour)."""
        return self._transport.send(
            calls.usage(workload, project, user, node, since, until, step_s)
        )

    def usage_by(
        self, kind: UsageKind, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[UsageOf]:
        """Return averages of each project, user or node that one may see (default: an hour)."""
        return self._transport.send(calls.usage_by(kind, since, until))

    def history(self, since: datetime) -> list[PastWorkload]:
        """Return every workload that held GPUs after a time; for hub admins."""
        return self._transport.send(calls.history(since))

    def snapshot(self) -> dict[str, Any]:
        """Return nodes, projects and policy in the words of a snapshot; for hub admins."""
        return self._transport.send(calls.snapshot())

    def nodes(self) -> list[NodeView]:
        """Return the machines and their devices."""
        return self._transport.send(calls.nodes())

    def explanation(self, workload: str) -> ExplanationView:
        """Return why a workload waits at length: what would help, and when it starts."""
        return self._transport.send(calls.explanation(workload))

    def what_if(self, question: PlanQuestion) -> WhatIf:
        """Return what would start, stop and wait if something were otherwise."""
        return self._transport.send(calls.what_if(question))

    def plan(self) -> dict[str, Any]:
        """Return the last plan's decisions about workloads that the caller may see."""
        return self._transport.send(calls.plan())

    def report(self, report: AgentReport) -> AgentReply:
        """Deliver an agent's samples and learn what to look at next."""
        return self._transport.send(calls.report(report))


class AsyncClient(_Face):
    """The same calls, awaited. Cancelling one closes its connection."""

    def _connect(self, url: str, token: str, patience_s: float, ca: str | None) -> None:
        self._transport = AsyncTransport(url, token, patience_s, ca)
        self.url = self._transport.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def whoami(self) -> WhoAmI:
        """Return who the service takes the token's owner for."""
        return await self._transport.send(calls.whoami())

    async def overview(self) -> Overview:
        """Return everything that the caller may see, at one instant."""
        return await self._transport.send(calls.overview())

    def events(self) -> AsyncIterator[Overview]:
        """Yield an overview at once and after each change; broken connections are renewed."""
        return self._transport.receive(calls.events())

    async def projects(self) -> list[ProjectView]:
        """Return all projects with this cycle's shares."""
        return await self._transport.send(calls.projects())

    async def project(self, name: str) -> ProjectView:
        """Return one project."""
        return await self._transport.send(calls.project(name))

    async def put_project(self, name: str, change: ProjectPut) -> ProjectView:
        """Create a project, or change the fields that are set."""
        return await self._transport.send(calls.put_project(name, change))

    async def delete_project(self, name: str) -> None:
        """Delete a project that has no unfinished workloads."""
        await self._transport.send(calls.delete_project(name))

    async def workload_page(
        self, which: Which, after: str | None = None, limit: int = FIRST_PAGE
    ) -> WorkloadPage:
        """Return a page of workloads, after the token of the one before, and counts of all."""
        return await self._transport.send(calls.workload_page(which, limit, after))

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

    async def workload(self, workload: str) -> WorkloadDetail:
        """Return one workload by its id, `project/name`."""
        return await self._transport.send(calls.workload(workload))

    async def wait(
        self, workload: str, changed_from: str, timeout_s: float = 30.0
    ) -> WorkloadDetail:
        """Return the workload when its version differs from `changed_from`, or when time is up."""
        return await self._transport.send(calls.wait(workload, changed_from, timeout_s))

    async def submit(self, request: SubmitRequest, *, dry_run: bool = False) -> SubmitReply:
        """Submit a job or a session, or say what would come of it."""
        return await self._transport.send(
            calls.submit(self._with_project(request), dry_run=dry_run)
        )

    async def suspend(self, workload: str) -> WorkloadDetail:
        """Take a job out of the queue, stopping it if it runs."""
        return await self._transport.send(calls.suspend(workload))

    async def resume(self, workload: str) -> WorkloadDetail:
        """Put a suspended job back into its place in the queue."""
        return await self._transport.send(calls.resume(workload))

    async def scale(self, workload: str, asked: ScaleRequest) -> WorkloadDetail:
        """Let an elastic job have more or fewer workers."""
        return await self._transport.send(calls.scale(workload, asked))

    async def keep(self, workload: str) -> WorkloadDetail:
        """Keep idle GPUs for 30 more minutes."""
        return await self._transport.send(calls.keep(workload))

    async def release(self, workload: str) -> WorkloadDetail:
        """Give a session's GPUs to others; it goes on without them."""
        return await self._transport.send(calls.release(workload))

    async def regain(self, workload: str) -> WorkloadDetail:
        """Ask for a released session's GPUs again."""
        return await self._transport.send(calls.regain(workload))

    async def delete(self, workload: str) -> None:
        """Stop a workload if it runs, and forget it."""
        await self._transport.send(calls.delete(workload))

    async def attach(self, workload: str, process: ProcessReport) -> WorkloadDetail:
        """Tell which process a granted session is."""
        return await self._transport.send(calls.attach(workload, process))

    async def environment(self, workload: str, worker: int = 0) -> EnvironmentView:
        """Return the environment that hands a worker its devices."""
        return await self._transport.send(calls.environment(workload, worker))

    def logs(
        self,
        workload: str,
        *,
        worker: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Yield what its workers wrote; `follow` goes on until the workload is finished."""
        return self._transport.receive(calls.logs(workload, worker, tail, follow=follow))

    def execute(self, workload: str, run: ExecRequest, worker: int = 0) -> AsyncIterator[ExecPiece]:
        """Run a program beside a worker; yield what it writes, and how it ended."""
        return self._transport.receive(calls.execute(workload, run, worker))

    async def usage(
        self,
        *,
        workload: str | None = None,
        project: str | None = None,
        user: str | None = None,
        node: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step_s: int | None = None,
    ) -> UsageSeries:
        """Return allocation and utilization over a range (default: the last hour)."""
        return await self._transport.send(
            calls.usage(workload, project, user, node, since, until, step_s)
        )

    async def usage_by(
        self, kind: UsageKind, *, since: datetime | None = None, until: datetime | None = None
    ) -> list[UsageOf]:
        """Return averages of each project, user or node that one may see (default: an hour)."""
        return await self._transport.send(calls.usage_by(kind, since, until))

    async def nodes(self) -> list[NodeView]:
        """Return the machines and their devices."""
        return await self._transport.send(calls.nodes())

    async def explanation(self, workload: str) -> ExplanationView:
        """Return why a workload waits at length: what would help, and when it starts."""
        return await self._transport.send(calls.explanation(workload))

    async def what_if(self, question: PlanQuestion) -> WhatIf:
        """Return what would start, stop and wait if something were otherwise."""
        return await self._transport.send(calls.what_if(question))

    async def plan(self) -> dict[str, Any]:
        """Return the last plan's decisions about workloads that the caller may see."""
        return await self._transport.send(calls.plan())

    async def report(self, report: AgentReport) -> AgentReply:
        """Deliver an agent's samples and learn what to look at next."""
        return await self._transport.send(calls.report(report))
