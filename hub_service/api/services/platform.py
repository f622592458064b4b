"""Parts of the running service, and the dependencies that handlers declare.

Handlers declare `PlatformDep` and `Caller` (the actor). The platform also gathers the read
model (`ReadModel`) that views render.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Query, Request

from runai.hub_service.api.auth.authentication import Authenticator
from runai.hub_service.api.auth.permissions import Action, Actor, authorise, no_such_workload
from runai.hub_service.api.auth.single_flight import SingleFlight
from runai.hub_service.api.middleware.caller_identification import MAX_AT_ONCE, caller_of, identify
from runai.hub_service.api.middleware.job_limit import JobLimit
from runai.hub_service.api.middleware.request_limits import CallerLimits
from runai.hub_service.api.services.former_members import FormerMembers
from runai.hub_service.api.services.overview_feed import OverviewFeeds, RenderTurns
from runai.hub_service.api.views.latest_agent_reports import AgentReports
from runai.hub_service.api.views.read_model import ReadModel
from runai.hub_service.api.views.start_forecasts import StartForecasts
from runai.hub_service.api.views.view_cache import MEASURED_FOR_S, ViewCache
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.api.views.workload_queues import NO_QUEUES, LastQueues, Queues
from runai.hub_service.clusters.states.identity import refuse_other
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.decision_worker import DecisionWorker
from runai.hub_service.controller.history_recorder import AllocationCache
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.controller.notifications import RecentNotifications
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.cluster import Cluster, Programs, WorkerMessages
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import ProjectSpec, WorkloadId, WorkloadRecord
from runai.hub_service.processes.accounts.account_directory import AccountDirectory
from runai.hub_service.wire.errors import Forbidden, NotFound, Unavailable


@dataclass
class Platform:
    """Parts of the running service."""

    cluster: Cluster
    controller: Controller
    decision_worker: DecisionWorker
    """Answers questions beside the controller's cycles."""
    ledger: Ledger
    idle: IdleWatch
    authenticator: Authenticator
    prefix: str
    """Path of the service's root, with a slash at both ends."""
    version: str
    workdir_exists: Callable[[str], bool]
    """Return True if jobs can start in a directory, or only their user could check."""
    proxy: str = ""
    """The proxy in front of the hub, in words; "": unknown."""
    accounts: AccountDirectory | None = None
    """Unix accounts as which workloads run; None: they run as none of their users'."""
    images: bool = False
    """True if jobs run in container images that their users may choose."""
    workers: WorkerMessages | None = None
    """Messages to and from workers of elastic jobs over the API; None: over files."""
    programs: Programs | None = None
    """Runner of programs beside workloads; None: users start them on this machine."""
    clock: Callable[[], float] = time.time
    agent_reports: AgentReports = field(default_factory=AgentReports)
    recent: RecentNotifications = field(default_factory=RecentNotifications)
    """Recent notifications of users."""
    shutdown: asyncio.Event = field(default_factory=asyncio.Event)
    """Set before shutdown: waiting calls return the current state, streams end."""
    forecasts: StartForecasts = field(default_factory=StartForecasts)
    checks: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """Health checks of the parts that a submission needs; each returns "" or the failure."""
    view_cache: ViewCache = field(default_factory=ViewCache)
    render_turns: RenderTurns = field(default_factory=RenderTurns)
    queues: LastQueues = field(default_factory=LastQueues)
    """Queue positions of the workloads as last listed."""
    caller_limits: CallerLimits = field(default_factory=CallerLimits)
    identifications: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE)
    )
    """Acquired while a caller is identified."""
    former_members: FormerMembers | None = None
    """Former members of projects, of whom the scheduler starts nothing."""
    job_limit: JobLimit = field(default_factory=JobLimit)
    """Limit on unfinished jobs per user."""
    _shared_read_model: ReadModel | None = None
    _shared_version: int = -1
    _progress_cache: SingleFlight[Mapping[WorkloadId, Progress]] = field(
        default_factory=lambda: SingleFlight(
            at_once=1, ttl_s=MEASURED_FOR_S, clock=lambda: asyncio.get_running_loop().time()
        )
    )
    """Progress that jobs report: hundreds of files, read by one thread at a time."""

    @cached_property
    def feeds(self) -> OverviewFeeds:
        """Return the overviews of all event streams."""
        return OverviewFeeds(self.shared_read_model, self.controller.changes, self.render_turns)

    @cached_property
    def holdings(self) -> AllocationCache:
        """Return the device holders that each node's agent receives."""
        return AllocationCache(self.cluster)

    async def account_note(self, record: WorkloadRecord) -> str:
        """Return a sentence if a workload's uid is not, or may not be, its user's any more."""
        user, uid = record.spec.user, record.account_uid
        if self.accounts is None or uid is None:
            return ""
        try:
            await self.accounts.compare(user)
            account = self.accounts.known_accounts.get(user)
        except (Forbidden, Unavailable) as refused:
            return refused.message
        if account is None or account.uid == uid:
            return ""
        return f"uid {uid}; {user} has {account.uid} now"

    async def read_model(
        self, progress_of: Collection[WorkloadId] | None = None, *, listed: bool = True
    ) -> ReadModel:
        """Build the read model of the current state.

        `progress_of` limits the workloads with progress, which is read from files: each waits for
        the interpreter's lock. None: all. Views of records that the caller has already may skip the
        list (`listed=False`): after each change the list of tens of thousands of workloads is a new
        one.
        """
        workloads: Sequence[WorkloadRecord] = ()
        queues = NO_QUEUES
        if listed:
            queues = await self._current_queues()
            workloads = await self.cluster.workloads()
            self.view_cache.retain(workloads)
        return ReadModel(
            at=self.clock(),
            workloads=workloads,
            projects={record.spec.name: record for record in await self.cluster.projects()},
            devices=await self.cluster.devices(),
            snapshot=self.controller.last.snapshot,
            shares=self.controller.last.plan.projects,
            meter=self.ledger,
            starts=self.forecasts.of(self.controller.last, self.decision_worker.forecast),
            progress=await self._progress(progress_of),
            idle=self.idle.now,
            view_cache=self.view_cache,
            queues=queues,
            agent_reports=self.agent_reports,
            recent=self.recent,
            former_members={} if self.former_members is None else self.former_members.by_project,
        )

    async def _current_queues(self) -> Queues:
        """Bring the queues up to date, and return them."""
        while True:
            since = self.queues.version
            changes = await self.cluster.changes(since)
            if self.queues.version == since:
                self.queues.apply(changes)
            # Else a call at the same time has applied changes: those of ours, or fewer.
            if self.queues.version is not None and self.queues.version >= changes.version:
                return self.queues.queues

    async def _progress(
        self, workloads: Collection[WorkloadId] | None
    ) -> Mapping[WorkloadId, Progress]:
        """Return the progress that jobs report; reuse a fresh reading of all jobs."""
        if workloads == ():
            return {}
        if workloads is None:
            return await self._progress_cache.get("", self.cluster.progress)
        all_progress = self._progress_cache.cached("")
        return await self.cluster.progress(workloads) if all_progress is None else all_progress

    async def shared_read_model(self) -> ReadModel:
        """Return all streams' read model. It is rebuilt after each cycle and twice a second."""
        now, version = self.clock(), self.controller.changes.version
        if (
            self._shared_read_model is None
            or self._shared_version != version
            or not 0 <= now - self._shared_read_model.at < MEASURED_FOR_S
        ):
            self._shared_read_model, self._shared_version = await self.read_model(), version
        return self._shared_read_model

    async def viewer(
        self,
        actor: Actor,
        progress_of: Collection[WorkloadId] | None = None,
        *,
        listed: bool = True,
    ) -> Viewer:
        """Return the read model filtered for the actor, with progress as in `read_model`."""
        return Viewer(await self.read_model(progress_of, listed=listed), actor)

    async def project_specs(self) -> dict[str, ProjectSpec]:
        """Return all projects by name."""
        return {record.spec.name: record.spec for record in await self.cluster.projects()}

    async def access(
        self, actor: Actor, action: Action, workload: WorkloadId, uid: str = ""
    ) -> WorkloadRecord:
        """Return a workload on which the actor may perform the action.

        Raises:
            NotFound: it does not exist, or the actor may not learn that it does.
            Forbidden: the actor may see it, but not do this.
            Conflict: it is another one than that of a non-empty uid.
        """
        try:
            record = await self.cluster.workload(workload)
        except NotFound:
            raise no_such_workload(workload) from None
        project = (await self.project_specs()).get(record.spec.project)
        authorise(actor, action, project, record.spec)
        refuse_other(record, uid)
        return record


def _platform_of(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform


async def _platform(request: Request) -> Platform:
    # `async`: FastAPI runs a plain function in a thread, for every request.
    return _platform_of(request)


class Watcher:
    """Reader of a stream, identified again periodically so that a revoked token stops reading."""

    def __init__(self, request: Request, actor: Actor) -> None:
        self._request = request
        self._platform = _platform_of(request)
        self.actor = actor

    async def check(self) -> None:
        """Identify the reader again.

        Raises:
            Unauthenticated, Forbidden: the reader may not read on.
        """
        self.actor = await identify(self._request)

    async def check_allowed(self, action: Action, workload: WorkloadId, uid: str = "") -> None:
        """Identify the reader again, and check its permission on a workload.

        A known reader may have left the project, or its token may have lost a scope.

        Raises:
            Unauthenticated, Forbidden, NotFound: the reader may not go on.
            Conflict: another workload has the name now.
        """
        await self.check()
        await self._platform.access(self.actor, action, workload, uid)


async def _watcher(request: Request) -> Watcher:
    return Watcher(request, await caller_of(request))


Uid = Annotated[
    str,
    Query(
        max_length=64,
        description="Only the workload with this `uid`; another one of that name is refused (409).",
    ),
]
PlatformDep = Annotated[Platform, Depends(_platform)]
Caller = Annotated[Actor, Depends(caller_of)]
WatcherDep = Annotated[Watcher, Depends(_watcher)]
