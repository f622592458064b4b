"""Cache of the scheduler: the informers' objects, and what we did and decided beyond them.

Nothing is remembered here that the API server does not know, but for the moments before its watches
say what we did ourselves: after a crash the next service sees the same world.
"""

from collections.abc import Mapping, Sequence

from runai.hub_service.clusters.kubernetes.informers.job_informers import Informers
from runai.hub_service.clusters.kubernetes.informers.node_pool import Pool
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import name_of, project_of
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import adopted
from runai.hub_service.clusters.kubernetes.snapshot.assumed_state import OurDoing
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import Slots
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import Promise
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import ElasticJobs
from runai.hub_service.clusters.kubernetes.workloads.workload_records import Known
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.scheduler.model.snapshot import Move, Resize, Stop, Wait


class Cache:
    """State of one cluster, written by the scheduling cycle and read by all requests."""

    def __init__(
        self, informers: Informers, elastic: ElasticJobs, pool: Pool, default_project: str
    ) -> None:
        """Begin empty. `default_project` owns what names no project."""
        self.informers = informers
        self.default_project = default_project
        self.doing = OurDoing()
        self.slots = Slots()
        self.promises: dict[str, Promise] = {}
        self.waits: dict[WorkloadId, Wait] = {}
        """Why workloads wait, by the last plan."""
        self.stops: dict[WorkloadId, Stop | Move | Resize] = {}
        """Why workloads were stopped last."""
        self._elastic = elastic
        self._pool = pool

    def pods(self) -> list[Pod]:
        """Return pods with our own writes that the watches have not shown yet."""
        informers = self.informers
        seen = self._pool.seen_from(informers.pods.objects.values(), informers.machines.objects)
        return adopted(self.doing.applied_to(seen), informers.jobs.by_uid())

    def known(self) -> Known:
        """Return all that records are drawn from."""
        pods = self.pods()
        return self.known_of(pods, self.slots.held(pods))

    def known_of(self, pods: Sequence[Pod], held: Mapping[str, tuple[int, ...]]) -> Known:
        """Return all that records are drawn from; `held` are the devices of pods."""
        jobs = self.informers.jobs.by_uid()
        states = {uid: self._elastic.state_of(job) for uid, job in jobs.items()}
        return Known(
            pods,
            jobs,
            self.informers.namespaces.objects,
            self.default_project,
            held,
            self.promises,
            self.waits,
            self.stops,
            {uid: state for uid, state in states.items() if state is not None},
        )

    def id_of(self, found: Job | Pod) -> WorkloadId:
        """Return the workload that a Job or a pod is."""
        pod = found.template if isinstance(found, Job) else found
        project = project_of(pod, self.informers.namespaces.objects, self.default_project)
        return f"{project}/{name_of(found)}"

    def forget_promises(self, job: str) -> None:
        """Keep no devices for the workers of a Job, by its UID."""
        for place in [place for place in self.promises if place.startswith(f"{job}/")]:
            del self.promises[place]
