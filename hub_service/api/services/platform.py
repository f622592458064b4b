"""What every handler works with: the parts of the running service, and who asks.

Handlers declare `On` (the platform) and `Caller` (the actor) and get them from here. Knows how to
gather a `World`; leaves what of it is shown to `views`. Made by the composition root.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request

from runai.hub_service.api.auth.authentication import Authenticator
from runai.hub_service.api.auth.permissions import Action, Actor, authorise, no_such_workload
from runai.hub_service.api.auth.single_flight import AskedOnce
from runai.hub_service.api.middleware.caller import MAX_AT_ONCE, caller_of, identify
from runai.hub_service.api.middleware.job_limit import JobLimit
from runai.hub_service.api.middleware.request_limits import Callers
from runai.hub_service.api.services.overview_feed import Drawing, Feeds
from runai.hub_service.api.views.cluster_view import World
from runai.hub_service.api.views.latest_reports import Present
from runai.hub_service.api.views.start_views import Forecasts
from runai.hub_service.api.views.view_cache import MEASURED_FOR_S, DrawnViews
from runai.hub_service.api.views.workload_queues import LastQueues
from runai.hub_service.api.views.workload_views import Viewer
from runai.hub_service.clusters.workloads.cpu_job_queue import CpuJobQueue
from runai.hub_service.controller.history_recorder import Holdings
from runai.hub_service.controller.idle.watch import IdleWatch
from runai.hub_service.controller.loop import Controller
from runai.hub_service.controller.notifications import Recent
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.cluster import Cluster, Programs, WorkerMessages
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import ProjectSpec, WorkloadId, WorkloadRecord
from runai.hub_service.wire.errors import NotFound


@dataclass
class Platform:
    """The parts of the running service."""

    cluster: Cluster
    controller: Controller
    ledger: Ledger
    idle: IdleWatch
    authenticator: Authenticator
    prefix: str
    """Path of the service's root, with a slash at both ends."""
    version: str
    workdir_exists: Callable[[str], bool]
    """Whether jobs could begin in a directory; always true where only their user could tell."""
    proxy: str = ""
    """The proxy before the hub, in words; "": unknown."""
    images: bool = False
    """Whether jobs run in container images, which their users may choose."""
    workers: WorkerMessages | None = None
    """Who speaks with the workers of elastic jobs over the API; None: files do."""
    programs: Programs | None = None
    """Who runs programs beside workloads; None: their users do, on this machine."""
    cpu_jobs: CpuJobQueue = field(default_factory=CpuJobQueue)
    """Which workloads without a GPU the scheduler is shown."""
    clock: Callable[[], float] = time.time
    present: Present = field(default_factory=Present)
    recent: Recent = field(default_factory=Recent)
    """What people were told lately."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the service is about to end: who waits is answered with what is, streams end."""
    questions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Taken while the scheduler is asked something outside its cycles."""
    forecasts: Forecasts = field(default_factory=Forecasts)
    checks: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """What is wrong with each part without which nothing can be asked for; "" while it is well."""
    drawn: DrawnViews = field(default_factory=DrawnViews)
    drawing: Drawing = field(default_factory=Drawing)
    queues: LastQueues = field(default_factory=LastQueues)
    """Of the workloads as they were when somebody looked last."""
    callers: Callers = field(default_factory=Callers)
    identifications: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE)
    )
    """Taken while a caller is identified."""
    jobs: JobLimit = field(default_factory=JobLimit)
    """How many of anybody may be unfinished."""
    _shared: World | None = None
    _shared_version: int = -1
    _reported: AskedOnce[Mapping[WorkloadId, Progress]] = field(
        default_factory=lambda: AskedOnce(
            at_once=1, keep_s=MEASURED_FOR_S, clock=lambda: asyncio.get_running_loop().time()
        )
    )
    """What all jobs report of themselves: hundreds of files, looked at by one thread at a time."""

    @cached_property
    def feeds(self) -> Feeds:
        """Return what all event streams read."""
        return Feeds(self.shared_world, self.controller.changes, self.drawing)

    @cached_property
    def holdings(self) -> Holdings:
        """Return what says who holds what, to each node's agent."""
        return Holdings(self.cluster)

    async def world(
        self, progress_of: Collection[WorkloadId] | None = None, *, listed: bool = True
    ) -> World:
        """Gather everything there is to show, now.

        `progress_of` are the only workloads of which is needed what they report of themselves:
        files are looked at for it, each of which waits for the interpreter. None: all. Where
        records that one has already are all that is shown, workloads need not be `listed`: after
        each change the list of tens of thousands is another.
        """
        workloads: Sequence[WorkloadRecord] = ()
        if listed:
            workloads = await self.cluster.workloads()
            self.drawn.retain(workloads)
        return World(
            at=self.clock(),
            workloads=workloads,
            projects={record.spec.name: record for record in await self.cluster.projects()},
            devices=await self.cluster.devices(),
            shares=self.controller.last.plan.projects,
            meter=self.ledger,
            starts=self.forecasts.of(self.controller.last),
            progress=await self._progress(progress_of),
            idle=self.idle.now,
            drawn=self.drawn,
            queued=self.queues.of,
            present=self.present,
            recent=self.recent,
        )

    async def _progress(self, of: Collection[WorkloadId] | None) -> Mapping[WorkloadId, Progress]:
        """Look at what jobs report of themselves, unless that of all was looked at just now."""
        if of == ():
            return {}
        if of is None:
            return await self._reported.ask("", self.cluster.progress)
        known = self._reported.known("")
        return await self.cluster.progress(of) if known is None else known

    async def shared_world(self) -> World:
        """Gather once for all streams, anew after each cycle and twice a second."""
        now, version = self.clock(), self.controller.changes.version
        if (
            self._shared is None
            or self._shared_version != version
            or not 0 <= now - self._shared.at < MEASURED_FOR_S
        ):
            self._shared, self._shared_version = await self.world(), version
        return self._shared

    async def viewer(
        self,
        actor: Actor,
        progress_of: Collection[WorkloadId] | None = None,
        *,
        listed: bool = True,
    ) -> Viewer:
        """Return the present as the actor may see it, with the progress of all, or of these."""
        return Viewer(await self.world(progress_of, listed=listed), actor)

    async def project_specs(self) -> dict[str, ProjectSpec]:
        """Return all projects by name."""
        return {record.spec.name: record.spec for record in await self.cluster.projects()}

    async def allowed(self, actor: Actor, action: Action, workload: WorkloadId) -> WorkloadRecord:
        """Return a workload to which the actor may do this.

        Raises:
            NotFound: there is none, or the actor may not know that there is.
            Forbidden: the actor may see it, but not do this.
        """
        try:
            record = await self.cluster.workload(workload)
        except NotFound:
            raise no_such_workload(workload) from None
        project = (await self.project_specs()).get(record.spec.project)
        authorise(actor, action, project, record.spec)
        return record


def _platform_of(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform


async def _platform(request: Request) -> Platform:
    # Not the plain function: FastAPI would have a thread call it, for every request.
    return _platform_of(request)


class Watcher:
    """Who reads a stream; asked again now and then, so that a revoked token does not read on."""

    def __init__(self, request: Request, actor: Actor) -> None:
        self._request = request
        self._platform = _platform_of(request)
        self.actor = actor

    async def check(self) -> None:
        """Find out who it is now.

        Raises:
            Unauthenticated, Forbidden: nobody who may read on.
        """
        self.actor = await identify(self._request)

    async def check_allowed(self, action: Action, workload: WorkloadId) -> None:
        """Find out who it is now, and whether they may still do this to a workload.

        It may be known who reads, and they may have left the project meanwhile, or their token
        may have lost a scope.

        Raises:
            Unauthenticated, Forbidden, NotFound: nobody who may go on.
        """
        await self.check()
        await self._platform.allowed(self.actor, action, workload)


async def _watcher(request: Request) -> Watcher:
    return Watcher(request, await caller_of(request))


On = Annotated[Platform, Depends(_platform)]
Caller = Annotated[Actor, Depends(caller_of)]
Watching = Annotated[Watcher, Depends(_watcher)]
