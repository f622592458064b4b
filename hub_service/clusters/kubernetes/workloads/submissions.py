"""Submit jobs: check what a user asks for, and make a Job of each."""

from collections.abc import Sequence
from functools import partial

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object, asking, taken
from runai.hub_service.clusters.kubernetes.informers.node_pool import Pool
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    Confinement,
    Surroundings,
    manifest,
)
from runai.hub_service.clusters.kubernetes.objects.job_names import made_under_a_free_name
from runai.hub_service.clusters.kubernetes.objects.jobs import Job, read_job
from runai.hub_service.clusters.kubernetes.workloads.lookup import WorkloadLookup
from runai.hub_service.clusters.kubernetes.workloads.notebook_volumes import beside, check_room
from runai.hub_service.model.records import WorkloadId, WorkloadRecord, WorkloadSpec


class Submissions:
    """Jobs that users submit, made in one namespace."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        lookup: WorkloadLookup,
        *,
        namespace: str,
        image: str,
        api_url: str,
        ttl_s: int | None,
        bounds: Confinement,
        pool: Pool,
    ) -> None:
        """Make them as the arguments of `KubernetesCluster` say."""
        self._api = api
        self._cache = cache
        self._informers = cache.informers
        self._lookup = lookup
        self._namespace = namespace
        self._image = image
        self._api_url = api_url
        self._ttl_s = ttl_s
        self._bounds = bounds
        self._pool = pool

    async def submit(
        self, specs: Sequence[WorkloadSpec], *, pressing: bool = True
    ) -> Sequence[WorkloadRecord]:
        """Make a Job of each, all or none."""
        del pressing  # as in `changed`
        known = await self._lookup.records()
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
                await self.delete_job(job, has_pods=False)
            raise
        return [(await self._lookup.records())[spec.id] for spec in specs]

    async def submitted(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return what a user has submitted under a key."""
        return [
            r for r in await self._lookup.workloads() if (r.spec.user, r.spec.key) == (user, key)
        ]

    async def unfinished_jobs(self, user: str) -> int:
        """Return how many jobs of a user are not finished; suspended ones are not."""
        return sum(
            r.spec.user == user and r.spec.kind == "job" and not r.state.finished
            for r in await self._lookup.workloads()
        )

    async def delete_job(self, job: Job, *, has_pods: bool) -> None:
        """Delete a Job; one that has pods stays until they are gone."""
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
            self._informers.jobs.take(found)
        else:
            self._informers.jobs.drop(job)

    # -- inside ------------------------------------------------------------------------------------

    def _body(self, spec: WorkloadSpec, around: Surroundings, name: str = "") -> Object:
        check_room(spec, around, self._informers.machines.objects.get(around.node))
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
            lambda there: self._cache.id_of(read_job(there)),
        )
        self._informers.jobs.take(found)
        return read_job(found)

    async def _surroundings(self, user: str) -> Surroundings:
        """Return what the user's notebook has; that of the default server, if there are several."""
        servers = [
            pod
            for pod in self._informers.pods.objects.values()
            if pod.user == user and pod.namespace == self._namespace and pod.is_up
        ]
        if not servers:
            return Surroundings(self._image)
        first = min(servers, key=lambda pod: (pod.server != "", pod.name))
        return await beside(self._api, first)
