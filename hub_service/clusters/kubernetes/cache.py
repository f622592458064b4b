"""Cache of the scheduler: the informers' objects, assumed state and recent decisions.

Everything else is in the API server. Assumed state bridges the moments until the informers confirm
our own writes, so after a crash the next service sees the same cluster.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from runai.hub_service.clusters.kubernetes.informers.cluster_informers import ClusterInformers
from runai.hub_service.clusters.kubernetes.informers.node_pool import NodePool
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import name_of, project_of
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import adopted
from runai.hub_service.clusters.kubernetes.objects.run_time import TimeLimited, timed
from runai.hub_service.clusters.kubernetes.snapshot.assumed_state import AssumedState
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import DeviceIds
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import NominatedPlacement
from runai.hub_service.clusters.kubernetes.workloads.elastic_jobs import ElasticJobs
from runai.hub_service.clusters.kubernetes.workloads.workload_records import ClusterState
from runai.hub_service.model.records import ProjectSpec, WorkloadId
from runai.hub_service.model.time_limits import limit_within, rules_of
from runai.hub_service.scheduler.model.snapshot import Move, Resize, Stop, Wait


class Cache:
    """State of one cluster, written by the scheduling cycle and read by all requests."""

    def __init__(
        self,
        informers: ClusterInformers,
        elastic: ElasticJobs,
        pool: NodePool,
        default_project: str,
    ) -> None:
        """Begin empty; `default_project` owns workloads that name no project."""
        self.informers = informers
        self.default_project = default_project
        self.assumed = AssumedState()
        self.device_ids = DeviceIds()
        self.nominations: dict[str, NominatedPlacement] = {}
        self.waits: dict[WorkloadId, Wait] = {}
        """Why workloads wait, by the last plan."""
        self.stops: dict[WorkloadId, Stop | Move | Resize] = {}
        """Why workloads were last stopped."""
        self._elastic = elastic
        self._pool = pool

    def pods(self) -> list[Pod]:
        """Return the pods with our own unconfirmed writes; drop those that are confirmed."""
        informers = self.informers
        nodes = informers.nodes.objects
        relevant = self._pool.relevant_pods(informers.pods.objects.values(), nodes)
        return adopted(self.assumed.reconcile(relevant), informers.jobs.by_uid())

    def state(self) -> ClusterState:
        """Return the state that workload records are built from."""
        pods = self.pods()
        return self.state_of(pods, self.device_ids.update(pods))

    def state_of(
        self, pods: Sequence[Pod], device_numbers: Mapping[str, tuple[int, ...]]
    ) -> ClusterState:
        """Return the state that records are built from, given pods and their device numbers."""
        jobs = self.informers.jobs.by_uid()
        states = {uid: self._elastic.state_of(job) for uid, job in jobs.items()}
        return ClusterState(
            pods,
            jobs,
            self.informers.namespaces.objects,
            self.default_project,
            device_numbers,
            self.nominations,
            self.waits,
            self.stops,
            {uid: state for uid, state in states.items() if state is not None},
            self.limited(pods),
        )

    def limited(self, pods: Sequence[Pod]) -> dict[str, TimeLimited]:
        """Return Jobs, elements and single pods with a time limit, by key (`run_time.timed`)."""
        projects = {p.spec.name: p.spec for p in self.informers.projects.objects.values()}
        return timed(pods, self.informers.jobs.by_uid(), partial(self._limit_of, projects))

    def _limit_of(self, projects: Mapping[str, ProjectSpec], subject: Job | Pod) -> int | None:
        """Return the time limit of a Job or a pod, within its project's maximum."""
        if isinstance(subject, Job) and subject.spec is not None:
            return subject.spec.max_runtime
        pod = subject.template if isinstance(subject, Job) else subject
        name = project_of(pod, self.informers.namespaces.objects, self.default_project)
        if name not in projects or pod.kind == "inference":
            return pod.max_runtime
        kind = "job" if pod.kind == "train" else "session"
        return limit_within(pod.max_runtime, rules_of(projects[name], kind))

    def id_of(self, subject: Job | Pod) -> WorkloadId:
        """Return the workload ID of a Job or a pod."""
        pod = subject.template if isinstance(subject, Job) else subject
        project = project_of(pod, self.informers.namespaces.objects, self.default_project)
        return f"{project}/{name_of(subject)}"

    def drop_nominations(self, job_uid: str) -> None:
        """Drop the nominated devices of a Job's workers."""
        for place in [place for place in self.nominations if place.startswith(f"{job_uid}/")]:
            del self.nominations[place]
