"""Store of rows in `GpuJob` resources: the API server is the state of record.

`save` changes memory and returns; each resource has one write under way at most, and changes that
come meanwhile go with its next one. A write succeeds only over the version that was written or read
last, so a leader that was replaced stops at its first write over its successor's.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Self

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object, translated
from runai.hub_service.clusters.kubernetes.gpu_jobs.gpu_job import (
    GpuJob,
    UnreadableGpuJob,
    manifest,
    path_of,
    read_gpu_job,
    status,
)
from runai.hub_service.clusters.kubernetes.gpu_jobs.worker_pod import Resource
from runai.hub_service.clusters.kubernetes.objects.job_names import job_name, other_name
from runai.hub_service.model import arrays
from runai.hub_service.model.records import (
    HistoryEvent,
    ProjectRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.wire.errors import RunaiError, Unavailable

LOG: Final = logging.getLogger("runai.kubernetes")

STORED_WITHIN_S: Final = 10.0
"""Seconds that a caller waits until a change is stored."""
WRITES_AT_ONCE: Final = 16
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0


class ReplacedLeader(Exception):
    """A later leader has written: this one must stop."""


@dataclass(slots=True)
class _Home:
    """Resource of one job or array: rows to write, and the version written last."""

    spec: WorkloadSpec
    rows: dict[WorkloadId, WorkloadRecord] = field(default_factory=dict)
    """Rows to write; none: the resource is deleted."""
    name: str = ""
    uid: str = ""
    """Identity of the resource; "": none is known to exist."""
    version: str = ""
    """The resourceVersion over which the next write goes."""
    saved: int = 0
    """Number of changes so far, of which `written` are durable."""
    written: int = 0
    refusal: RunaiError | None = None
    """Why the resource was never created."""
    failing_since: float | None = None
    fault: str = ""
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when a write has ended."""
    writing: asyncio.Task[None] | None = None

    def announce(self) -> None:
        """Wake the waiters for a write."""
        self.progress.set()
        self.progress = asyncio.Event()


class ResourceStore:
    """Rows in the resources of one namespace, written by one leader."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        resources: Iterable[GpuJob] = (),
        *,
        writer: int = 0,
        on_removal: Callable[[WorkloadId], None] = lambda _id: None,
        patience_s: float = STORED_WITHIN_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Use `open` instead, which reads the resources.

        `writer` numbers the leaders, as the Lease's transitions do. `on_removal` gets the id of a
        job or array after a deletion of its resource by kubectl.
        """
        self._api = api
        self._path = path_of(namespace)
        self._writer = writer
        self._on_removal = on_removal
        self._patience_s = patience_s
        self._clock = clock
        self._homes: dict[WorkloadId, _Home] = {}
        self._home_ids: dict[WorkloadId, WorkloadId] = {}
        """The id of each row's home."""
        self._history: dict[WorkloadId, list[HistoryEvent]] = {}
        self._projects: dict[str, ProjectRecord] = {}
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)
        self._failed = asyncio.get_running_loop().create_future()
        for found in resources:
            home = _Home(found.spec, name=found.name, uid=found.uid, version=found.version)
            home.rows = {row.id: row for row in found.rows}
            self._homes[found.spec.id] = home
            self._home_ids |= dict.fromkeys(home.rows, found.spec.id)
            if not found.rows:  # its submission was never answered
                self._touch(found.spec.id)

    @classmethod
    async def open(cls, api: Api, namespace: str, **options: Any) -> Self:  # noqa: ANN401
        """Read all resources of a namespace; the options are the class's.

        Raises:
            Unavailable: one of them cannot be read.
            ApiError: the API server refuses, or does not answer.
        """
        try:
            pages = api.pages(path_of(namespace))
            found = [read_gpu_job(item) async for page in pages for item in page["items"]]
        except UnreadableGpuJob as wrong:
            raise Unavailable(
                f"{wrong}.",
                hint="Mend it, or delete it by kubectl delete gpujob; its pods go with it.",
                code="damaged_row",
            ) from wrong
        return cls(api, namespace, found, **options)

    async def run(self) -> NoReturn:
        """Wait for a write that must not be tried again, and raise its error.

        Raises:
            ReplacedLeader: another leader has replaced this one.
        """
        await asyncio.shield(self._failed)
        raise AssertionError

    async def close(self) -> None:
        """Stop writing, and cut requests under way off."""
        writes = [home.writing for home in self._homes.values() if home.writing is not None]
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)

    # -- reading ---------------------------------------------------------------------------------

    def rows(self) -> Iterator[WorkloadRecord]:
        """Yield all workloads, oldest first."""
        rows = (row for home in self._homes.values() for row in home.rows.values())
        yield from sorted(rows, key=lambda row: (row.submitted, row.id))

    def projects(self) -> Iterable[ProjectRecord]:
        """Return the projects that were saved."""
        return list(self._projects.values())

    def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's events since this service's start, oldest first."""
        return list(self._history.get(workload, ()))

    def resource(self, home_id: WorkloadId) -> Resource | None:
        """Return the resource of a job or whole array, or None."""
        home = self._homes.get(home_id)
        return Resource(home.name, home.uid) if home is not None and home.uid else None

    def unhealthy_reason(self) -> str:
        """Return the reason of the oldest failing write; "" if none fails."""
        failing = [home for home in self._homes.values() if home.failing_since is not None]
        if not failing:
            return ""
        first = min(failing, key=lambda home: home.failing_since or 0.0)
        seconds = self._clock() - (first.failing_since or 0.0)
        return f"{len(failing)} jobs are not stored for {seconds:.0f} s: {first.fault}"

    # -- writing ---------------------------------------------------------------------------------

    def save(
        self,
        rows: Sequence[WorkloadRecord] = (),
        *,
        deleted: Sequence[WorkloadId] = (),
        events: Sequence[tuple[WorkloadId, HistoryEvent]] = (),
        projects: Sequence[ProjectRecord] = (),
        deleted_projects: Sequence[str] = (),
        soon: bool = False,
        urgent: bool = False,
    ) -> None:
        """Change rows in memory, and begin to write the resources that have them.

        `soon`: with the next write of the resource, since the next plan has the change again.
        """
        del urgent
        for row in rows:
            home_id = arrays.array_id(row)
            home = self._homes.setdefault(home_id, _Home(row.spec))
            if not home.rows:
                home.refusal = None
                if not home.uid:
                    home.spec = row.spec
            home.rows[row.id] = row
            self._home_ids[row.id] = home_id
        # After a deletion by kubectl a row has no home.
        deleted_homes = {w: self._home_ids.pop(w) for w in deleted if w in self._home_ids}
        for workload, home_id in deleted_homes.items():
            self._homes[home_id].rows.pop(workload, None)
        for workload in deleted:
            self._history.pop(workload, None)
        for workload, event in events:
            self._history.setdefault(workload, []).append(event)
        self._projects |= {project.spec.name: project for project in projects}
        for name in deleted_projects:
            self._projects.pop(name, None)
        if not soon or deleted:
            for home_id in dict.fromkeys((*map(arrays.array_id, rows), *deleted_homes.values())):
                self._touch(home_id)

    def _touch(self, home_id: WorkloadId) -> None:
        """Begin to write a resource, unless it is being written."""
        home = self._homes[home_id]
        home.saved += 1
        if home.writing is None:
            home.writing = asyncio.get_running_loop().create_task(self._write(home_id, home))

    async def stored(self, workloads: Collection[WorkloadId]) -> None:
        """Return when everything saved of these workloads so far is durable.

        Raises:
            InvalidRequest: the API server refuses a new one.
            Unavailable: the store takes longer than 10 s; changes of stored rows are tried again.
        """
        found = {id_: self._homes.get(self._home_ids.get(id_, id_)) for id_ in workloads}
        homes = {id(home): (home, home.saved) for home in found.values() if home is not None}
        try:
            async with asyncio.timeout(self._patience_s):
                for home, saved in homes.values():
                    while home.written < saved and home.refusal is None:
                        await home.progress.wait()
        except TimeoutError:
            fault = next((home.fault for home, _ in homes.values() if home.fault), "no answer")
            raise Unavailable(
                f"Kubernetes did not store it within {self._patience_s:g} s: {fault}.",
                hint="Try again in a moment.",
                code="not_stored",
            ) from None
        for home, _ in homes.values():
            if home.refusal is not None:
                raise home.refusal

    async def _write(self, home_id: WorkloadId, home: _Home) -> None:
        """Write a resource until all its changes are durable."""
        pause_s = SHORTEST_PAUSE_S
        try:
            while home.written < home.saved:
                saved = home.saved
                try:
                    async with self._slots:
                        await self._put(home_id, home)
                except ApiError as error:
                    if error.is_for_good and not home.uid and error.status != 404:
                        home.refusal = translated(error)
                        home.announce()
                        return
                    self._note_fault(home_id, home, error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                else:
                    home.written, home.failing_since, home.fault = saved, None, ""
                    pause_s = SHORTEST_PAUSE_S
                    home.announce()
        except Exception as wrong:  # noqa: BLE001  `run` raises it
            if not self._failed.done():
                self._failed.set_exception(wrong)
        finally:
            home.writing = None
            if not home.rows and self._homes.get(home_id) is home:
                del self._homes[home_id]

    def _note_fault(self, home_id: WorkloadId, home: _Home, error: ApiError) -> None:
        home.fault = error.message
        if home.failing_since is None:
            home.failing_since = self._clock()
            LOG.warning("%s is not stored and tried again: %s", home_id, error.message)

    async def _put(self, home_id: WorkloadId, home: _Home) -> None:
        """Write a resource: create it, replace its status, or delete it.

        Raises:
            ApiError: a request was refused, or not answered.
            ReplacedLeader: a later leader has written it.
        """
        if not home.rows:
            await self._delete(home)
            return
        if not home.uid:
            await self._create(home)
            if not home.rows:  # given up meanwhile: the next write deletes it
                return
        body = manifest(home.spec, home.name)
        body["status"] = status(tuple(home.rows.values()), self._writer)
        body["metadata"]["resourceVersion"] = home.version
        try:
            found = await self._api.replace(f"{self._path}/{home.name}/status", body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            await self._read_again(home_id, home)
            if home.rows:
                raise
            return
        home.version = found["metadata"]["resourceVersion"]

    async def _create(self, home: _Home) -> None:
        """Create a resource, or find the one that an unanswered request has created."""
        for name in (job_name(home.spec), other_name(home.spec)):
            try:
                found = await self._api.create(self._path, manifest(home.spec, name))
            except ApiError as error:
                if error.status != 409:
                    raise
                existing = await self._find(name)
                if existing is None or existing.spec.id != home.spec.id:
                    continue  # of another workload: `lab/a-b` and `lab-a/b` have one usual name
                if existing.rows or existing.spec != home.spec:
                    # The submission of this resource was answered "no".
                    await self._delete_path(existing.name, existing.uid)
                    raise
                home.name, home.uid, home.version = name, existing.uid, existing.version
                return
            metadata = found["metadata"]
            home.name, home.uid, home.version = name, metadata["uid"], metadata["resourceVersion"]
            return
        raise ApiError(409, "Taken", f"its two names are taken by other resources: {name}")

    async def _delete(self, home: _Home) -> None:
        """Delete a resource; also one that an unanswered request may have created."""
        if home.uid:
            await self._delete_path(home.name, home.uid)
        else:
            for name in (job_name(home.spec), other_name(home.spec)):
                found = await self._find(name)
                if found is not None and found.spec.id == home.spec.id:
                    await self._delete_path(found.name, found.uid)
        home.name = home.uid = home.version = ""

    async def _delete_path(self, name: str, uid: str) -> None:
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._api.delete(f"{self._path}/{name}", options)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another one of that name
                raise

    async def _read_again(self, home_id: WorkloadId, home: _Home) -> None:
        """Read a resource that another has changed: the next write goes over that version.

        Raises:
            ReplacedLeader: a later leader has written it.
        """
        found = await self._find(home.name)
        if found is None or found.uid != home.uid:
            for workload in list(home.rows):
                del home.rows[workload]
                self._home_ids.pop(workload, None)
            home.name = home.uid = home.version = ""
            self._on_removal(home_id)
            return
        if found.writer > self._writer:
            raise ReplacedLeader(f"{home_id} was written by leader {found.writer}")
        home.version = found.version

    async def _find(self, name: str) -> GpuJob | None:
        """Return the resource of a name, by a list request: there is no right to `get`."""
        listed = await self._api.get(self._path, fieldSelector=f"metadata.name={name}")
        items: Sequence[Object] = listed["items"]
        return read_gpu_job(items[0]) if items else None
