"""Kubernetes as a cluster: workloads as Jobs, projects as custom resources, logs from the kubelets.

What is acknowledged is kept by the API server and by nothing else. Sessions are the pods that
JupyterHub makes: they are shown and scheduled, and never started here. How scheduling looks and
acts stands in `scheduling`; called by the controller and the API.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Container, Mapping, Sequence
from functools import partial

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object, asking, taken
from runai.hub_service.clusters.kubernetes.events.pod_conditions import pod_path, tell_event
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import IMAGE
from runai.hub_service.clusters.kubernetes.informers.node_pool import EVERYTHING, Pool
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    AS_NOTEBOOKS,
    Confinement,
    Surroundings,
    manifest,
)
from runai.hub_service.clusters.kubernetes.objects.job_names import made_under_a_free_name
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    Job,
    read_job,
    resumed,
    suspended,
    with_workers,
)
from runai.hub_service.clusters.kubernetes.objects.pod_groups import name_of, project_of
from runai.hub_service.clusters.kubernetes.snapshot.gpu_inventory import inventory, named
from runai.hub_service.clusters.kubernetes.workloads import history, logs
from runai.hub_service.clusters.kubernetes.workloads.agent_allocations import Metering
from runai.hub_service.clusters.kubernetes.workloads.notebook_volumes import beside, check_room
from runai.hub_service.clusters.kubernetes.workloads.projects import KeptProjects
from runai.hub_service.clusters.kubernetes.workloads.sessions import PodSessions
from runai.hub_service.clusters.kubernetes.workloads.workload_records import Showing
from runai.hub_service.clusters.states.state import Row
from runai.hub_service.clusters.states.worker_bounds import scaled
from runai.hub_service.model.cluster import LogChunk, Seen
from runai.hub_service.model.device import Device
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    Allocation,
    ElasticRules,
    HistoryEvent,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.wire.errors import Conflict, NotFound


class KubernetesCluster(PodSessions, KeptProjects):
    """All that the contract asks of a cluster, but for what a pod of JupyterHub's does itself."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str = "default",
        image: str = "",
        api_url: str = "",
        ttl_s: int | None = None,
        bounds: Confinement = AS_NOTEBOOKS,
        default_project: str = "default",
        reservation_image: str = IMAGE,
        elastic: ElasticRules | None = None,
        pool: Pool = EVERYTHING,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make jobs in `namespace`, where the notebooks are.

        A job runs in the image of its user's notebook; `image` is for those who have none. Jobs
        find the service at `api_url`. Kubernetes forgets them `ttl_s` seconds after their end;
        None: it keeps them until somebody deletes them. What it makes is of its `pool` of nodes.
        """
        super().__init__(
            api,
            default_project=default_project,
            reservation_image=reservation_image,
            elastic=elastic,
            pool=pool,
            clock=clock,
        )
        self._namespace = namespace
        self._image = image
        self._api_url = api_url
        self._showing, self._metering = Showing(), Metering()
        self._drawn: Mapping[WorkloadId, WorkloadRecord] = {}
        self._held: Mapping[str, Sequence[Allocation]] = {}
        self._holders: Mapping[WorkloadId, WorkloadRecord] = {}
        self._drawn_at: asyncio.Event | None = None  # the change that is to come after those
        self._counted: Mapping[str, Sequence[Device]] = {}
        self._counted_at: asyncio.Event | None = None
        self._ttl_s = ttl_s
        self._bounds = bounds

    # -- workloads ---------------------------------------------------------------------------------

    async def submit(
        self, specs: Sequence[WorkloadSpec], *, pressing: bool = True
    ) -> Sequence[WorkloadRecord]:
        """Make a Job of each, all or none."""
        del pressing  # as in `changed`
        known = await self._records()
        seen: set[WorkloadId] = set()
        for spec in specs:
            if spec.id in known or spec.id in seen:
                raise taken(spec, f" ({known[spec.id].state})" if spec.id in known else "")
            seen.add(spec.id)
        around = {user: await self._surroundings(user) for user in {spec.user for spec in specs}}
        for spec in specs:  # what cannot be had is said before anything is made
            self._body(spec, around[spec.user])
        made: list[Job] = []
        try:
            for spec in specs:
                job = await self._make(spec, around[spec.user])
                made.append(job)
        except BaseException:
            # Shielded by nobody: if we die here, the first few of an array are left, held.
            for job in made:
                await self._delete_job(job, has_pods=False)
            raise
        return [(await self._records())[spec.id] for spec in specs]

    async def workloads(self) -> Sequence[WorkloadRecord]:
        """Return all workloads, oldest first."""
        return list((await self._records()).values())

    async def names(self) -> Container[WorkloadId]:
        """Return which names are taken."""
        return await self._records()

    async def holders(self) -> Mapping[WorkloadId, WorkloadRecord]:
        """Return the workloads that hold devices."""
        await self._records()
        return self._holders

    async def workload(self, workload: WorkloadId) -> WorkloadRecord:
        """Return one workload."""
        if (found := (await self._records()).get(workload)) is not None:
            return found
        raise NotFound(
            f"There is no workload {workload}.", hint="runai list names those there are."
        )

    async def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return what the API server still remembers of it: Events are kept for an hour."""
        record, subject = await self.workload(workload), await self._subject(workload)
        with asking():
            return await history.read(self._api, record, subject)

    async def suspend(self, workload: WorkloadId, *, by: str) -> WorkloadRecord:
        """Take a Job out of the queue and stop it if it runs."""
        job = await self._job(workload, "suspended")
        if job.is_suspended and not job.is_held:
            return await self.workload(workload)
        self._forget_promises(job.uid)
        return await self._change_job(job, suspended(job, by), "Suspended", f"suspended by {by}")

    async def resume(self, workload: WorkloadId, *, by: str) -> WorkloadRecord:
        """Put a suspended Job back into the queue, in its old place."""
        job = await self._job(workload, "resumed")
        if not job.is_suspended or job.is_held:
            return await self.workload(workload)
        return await self._change_job(job, resumed(job), "Queued", f"resumed by {by}")

    async def scale(
        self, workload: WorkloadId, *, workers: int | None, min_workers: int | None, by: str
    ) -> WorkloadRecord:
        """Let an elastic Job have other numbers of workers; surplus ones are told first."""
        job, record = await self._job(workload, "scaled"), await self.workload(workload)
        now = self._clock()
        row = scaled(Row(record), workers=workers, min_workers=min_workers, by=by, now=now).row
        if row is None or row.scale is None:
            return record
        most, least = row.scale
        await self._tell_leaving(workload, {worker.name for worker in record.workers[most:]})
        with asking():
            found = await self._api.patch(job.path, with_workers(job, most=most, least=least))
        leaving = [pod.uid for pod in await self.pods_of(workload) if (pod.index or 0) >= most]
        self._doing.scaled(job, leaving, now)
        self._jobs.take(found)
        await self._tell(job, "Scaled", f"{by} lets it have {least} to {most} workers")
        return await self.workload(workload)

    async def delete(self, workload: WorkloadId, *, by: str) -> None:
        """Delete its Job or its pod; a Job that runs stays until its pods are gone."""
        await self.workload(workload)
        subject = await self._subject(workload)
        if subject.deleted is not None:
            return
        await self._tell(subject, "Deleted", f"deleted by {by}")
        if isinstance(subject, Job):
            has_pods = any(pod.holds for pod in await self.pods_of(workload))
            await self._delete_job(subject, has_pods=has_pods)
            return
        with asking():
            await self._api.delete(pod_path(subject), {"preconditions": {"uid": subject.uid}})

    async def wait(self, workload: WorkloadId, seen: WorkloadRecord) -> WorkloadRecord:
        """Return the workload as soon as it differs from `seen`."""
        while True:
            change = self._next_change
            if (record := await self.workload(workload)) != seen:
                return record
            await change.wait()

    async def logs(
        self, workload: WorkloadId, *, worker: int | None, tail: int | None, follow: bool
    ) -> AsyncIterator[LogChunk]:
        """Yield what its pods wrote; those of earlier attempts are gone with their pods."""
        await self.workload(workload)

        async def look() -> logs.Look:
            change = self._next_change
            record = await self.workload(workload)
            pods = await self.pods_of(workload)
            return logs.Look(pods, max(1, record.attempts), record.state.finished, change)

        if follow:
            chunks = logs.follow(self._api, look, worker=worker, tail=tail)
        else:
            chunks = logs.read(self._api, await look(), worker=worker, tail=tail)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return nothing: reports go to files, which are in the pods."""
        del only
        return {}

    # -- nodes -------------------------------------------------------------------------------------

    async def devices(self) -> Mapping[str, Sequence[Device]]:
        """Return the devices of each node; those that nobody has told us of have numbers only."""
        await self._machines.listed()
        if self._counted_at is not self._next_change:  # each node's agent asks, each second
            pods = self._applied_pods()
            known = named(pods, self._slots.held(pods), self._sharing.devices_of)
            self._counted, self._counted_at = (
                {
                    name: inventory(machine, known.get(name, {}), self._sharing.devices_on(name))
                    for name, machine in sorted(self._machines.objects.items())
                },
                self._next_change,
            )
        return self._counted

    async def note_holders(self, node: str, seen: Seen) -> None:
        """Take note of a node's devices and of who has them."""
        are_new = [self._sharing.learn(node, seen), self._sizes.learn(node, seen.devices)]
        if any(are_new):
            self._notice()

    async def note_faults(self, node: str, faults: Mapping[str, str]) -> None:
        """Take out those that are shared; the device plugin takes all others from its node."""
        if self._sharing.learn_faults(node, faults):
            self._notice()

    async def allocations(self, node: str) -> Sequence[Allocation]:
        """Return who holds its devices, by their pods; limits are kept by programs alone."""
        await self._records()
        return self._held.get(node, ())

    async def note(self, workload: WorkloadId, text: str) -> None:
        """Write a warning about it, as an Event."""
        await self.workload(workload)
        await self._tell(await self._subject(workload), "Warning", text, bad=True)

    # -- inside ------------------------------------------------------------------------------------

    async def _records(self) -> Mapping[WorkloadId, WorkloadRecord]:
        for mirror in self._mirrors:
            await mirror.listed()
        if self._drawn_at is not self._next_change:  # many ask between two changes
            pods = self._applied_pods()
            known = self._known(pods, self._slots.held(pods))
            self._drawn, self._drawn_at = self._showing.records(known), self._next_change
            self._held = self._metering.held_by_node(known)
            self._holders = {w: r for w, r in self._drawn.items() if r.holds_devices}
        return self._drawn

    async def _subject(self, workload: WorkloadId) -> Job | Pod:
        """Return what the API server has of a workload: its Job, or its pod.

        Raises:
            NotFound: there is neither.
        """
        everything: list[Job | Pod] = [*self._jobs.by_uid().values(), *self._applied_pods()]
        for found in everything:
            if self._id(found) == workload:
                return found
        raise NotFound(f"There is no workload {workload}.")

    def _id(self, found: Job | Pod) -> WorkloadId:
        pod = found.template if isinstance(found, Job) else found
        project = project_of(pod, self._namespaces.objects, self._default_project)
        return f"{project}/{name_of(found)}"

    async def _job(self, workload: WorkloadId, verb: str) -> Job:
        record = await self.workload(workload)
        subject = await self._subject(workload)
        if not isinstance(subject, Job):
            raise Conflict(
                f"{workload} is a session and cannot be {verb}.",
                hint="Stop it, or delete it.",
                code="is_a_session",
            )
        if record.state.finished:
            raise Conflict(
                f"{workload} is finished ({record.state}) and cannot be {verb}.",
                hint="Delete it and submit it again.",
                code="finished",
            )
        if subject.deleted is not None:
            raise Conflict(
                f"{workload} is being deleted and cannot be {verb}.",
                hint="Submit it again when it is gone.",
                code="being_deleted",
            )
        return subject

    async def pods_of(self, workload: WorkloadId) -> list[Pod]:
        """Return the pods that it has."""
        subject = await self._subject(workload)
        if isinstance(subject, Pod):
            return [subject]
        return [
            pod
            for pod in self._applied_pods()
            if pod.owner is not None and pod.owner.uid == subject.uid
        ]

    def _body(self, spec: WorkloadSpec, around: Surroundings, name: str = "") -> Object:
        check_room(spec, around, self._machines.objects.get(around.node))
        made = manifest(
            spec, around, name=name, api_url=self._api_url, ttl_s=self._ttl_s, bounds=self._bounds
        )
        return self._pool.put_in(made)

    async def _make(self, spec: WorkloadSpec, around: Surroundings) -> Job:
        found = await made_under_a_free_name(
            self._api,
            f"/apis/batch/v1/namespaces/{self._namespace}/jobs",
            spec,
            partial(self._body, spec, around),
            lambda there: self._id(read_job(there)),
        )
        self._jobs.take(found)
        return read_job(found)

    async def _change_job(
        self, job: Job, change: Object, word: str, sentence: str
    ) -> WorkloadRecord:
        with asking():
            found = await self._api.patch(job.path, change)
        self._jobs.take(found)
        changed = await self.workload(self._id(job))
        await self._tell(job, word, sentence)
        return changed

    async def _delete_job(self, job: Job, *, has_pods: bool) -> None:
        policy = "Foreground" if has_pods else "Background"
        body = {"propagationPolicy": policy, "preconditions": {"uid": job.uid}}
        with asking():
            try:
                found = await self._api.delete(job.path, body)
            except ApiError as error:
                if error.status not in (404, 409):  # it is gone, or another one of its name
                    raise
                return
        if has_pods:
            self._jobs.take(found)
        else:
            self._jobs.drop(job)

    async def _tell(self, subject: Job | Pod, word: str, text: str, *, bad: bool = False) -> None:
        with asking():
            await tell_event(self._api, subject, word, text, bad=bad)

    async def _surroundings(self, user: str) -> Surroundings:
        """Return what the user's notebook has; that of the default server, if there are several."""
        servers = [
            pod
            for pod in self._pods.objects.values()
            if pod.user == user and pod.namespace == self._namespace and pod.is_up
        ]
        if not servers:
            return Surroundings(self._image)
        first = min(servers, key=lambda pod: (pod.server != "", pod.name))
        return await beside(self._api, first)
