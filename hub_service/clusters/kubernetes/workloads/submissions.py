"""Submission of jobs: check the request and create one Job per spec, of a whole array too."""

from collections.abc import Sequence
from functools import partial

from runai.hub_service.clusters.kubernetes.cache import Cache
from runai.hub_service.clusters.kubernetes.client.api import (
    Api,
    ApiError,
    Object,
    translate_api_errors,
)
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    Confinement,
    PodTemplateSource,
    manifest,
)
from runai.hub_service.clusters.kubernetes.objects.job_names import create_under_free_name
from runai.hub_service.clusters.kubernetes.objects.jobs import Job, read_job
from runai.hub_service.clusters.kubernetes.workloads.notebook_volumes import beside, check_room
from runai.hub_service.clusters.kubernetes.workloads.workload_lookup import WorkloadLookup
from runai.hub_service.clusters.states.user_actions import refusal_of_used_name
from runai.hub_service.model import arrays
from runai.hub_service.model.records import WorkloadId, WorkloadRecord, WorkloadSpec


class Submissions:
    """Submission of jobs in one namespace."""

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
        pool: NodePool,
    ) -> None:
        """Store the settings; `KubernetesCluster` documents them."""
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

    async def submit(self, specs: Sequence[WorkloadSpec]) -> Sequence[WorkloadRecord]:
        """Create one Job per spec; none if any of them is impossible."""
        if specs and (again := await self.submitted(specs[0].user, specs[0].key)):
            return again
        await self._lookup.records()
        requested: set[WorkloadId] = set()
        for spec in specs:
            for workload in arrays.names_of(spec):
                existing = self._lookup.find(workload)
                if existing is not None or workload in requested:
                    raise refusal_of_used_name(
                        workload, existing.state if existing is not None else ""
                    )
                requested.add(workload)
        users = {spec.user for spec in specs}
        sources = {user: await self._template_source(user) for user in users}
        for spec in specs:  # reject impossible requests before creating anything
            self._body(spec, sources[spec.user])
        for spec in specs:
            await self._create_job(spec, sources[spec.user])
        return [(await self._lookup.records())[spec.id] for spec in specs]

    async def submitted(self, user: str, key: str) -> Sequence[WorkloadRecord]:
        """Return the workloads that a user submitted under an idempotency key."""
        known = await self._lookup.workloads() if key else ()
        return [r for r in known if (r.spec.user, r.spec.key) == (user, key)]

    async def unfinished_jobs(self, user: str) -> int:
        """Return the number of a user's unfinished jobs; suspended jobs count as unfinished."""
        return sum(
            r.size
            for r in await self._lookup.workloads()
            if r.spec.user == user and r.spec.kind == "job" and not r.state.finished
        )

    async def delete_job(self, job: Job, *, has_pods: bool) -> None:
        """Delete a Job; a Job with pods stays until they are gone."""
        policy = "Foreground" if has_pods else "Background"
        body = {"propagationPolicy": policy, "preconditions": {"uid": job.uid}}
        with translate_api_errors():
            try:
                found = await self._api.delete(job.path, body)
            except ApiError as error:
                if error.status not in (404, 409):  # gone, or replaced under the same name
                    raise
                return
        if has_pods:
            self._informers.jobs.apply(found)
        else:
            self._informers.jobs.drop(job)

    # -- inside ------------------------------------------------------------------------------------

    def _body(self, spec: WorkloadSpec, source: PodTemplateSource, name: str = "") -> Object:
        """Return the manifest of a Job, or raise InvalidRequest if it can never run."""
        check_room(spec, source, self._informers.nodes.objects.get(source.node))
        body = manifest(
            spec, source, name=name, api_url=self._api_url, ttl_s=self._ttl_s, bounds=self._bounds
        )
        return self._pool.with_labels(body)

    async def _create_job(self, spec: WorkloadSpec, source: PodTemplateSource) -> None:
        found = await create_under_free_name(
            self._api,
            f"/apis/batch/v1/namespaces/{self._namespace}/jobs",
            spec,
            partial(self._body, spec, source),
            lambda existing: self._cache.id_of(read_job(existing)),
        )
        self._informers.jobs.apply(found)

    async def _template_source(self, user: str) -> PodTemplateSource:
        """Return the pod settings of the user's notebook, preferably of the default server."""
        servers = [
            pod
            for pod in self._informers.pods.objects.values()
            if pod.user == user and pod.namespace == self._namespace and pod.is_up
        ]
        if not servers:
            return PodTemplateSource(self._image)
        first = min(servers, key=lambda pod: (pod.server != "", pod.name))
        return await beside(self._api, first)
