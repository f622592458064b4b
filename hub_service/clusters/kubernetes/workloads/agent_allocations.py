"""Device allocations per node, for agents that attribute processes to pods.

A process cannot leave the control group of its pod, which has the pod's UID in its name. No API
calls.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import name_of, project_of
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import shares_of
from runai.hub_service.clusters.kubernetes.workloads.workload_records import ClusterState, Memo
from runai.hub_service.model.records import Allocation


class AllocationBuilder:
    """Builder of allocations that reuses the object of an unchanged one."""

    def __init__(self) -> None:
        """Begin with no allocation built."""
        self._cache = Memo[Allocation]()

    def allocations_by_node(
        self, cluster_state: ClusterState
    ) -> Mapping[str, Sequence[Allocation]]:
        """Return the workers that hold devices, by node."""
        self._cache.begin()
        found: dict[str, list[Allocation]] = {}
        for pod in cluster_state.pods:
            if pod.scheduler != SCHEDULER or pod.is_reservation or not pod.uses_node:
                continue
            if not (devices := cluster_state.devices.get(pod.uid)):
                continue
            job = cluster_state.jobs.get(pod.owner.uid) if pod.owner is not None else None
            whole = job if job is not None and (job.is_whole or job.is_array) else None
            project = project_of(pod, cluster_state.namespaces, cluster_state.default_project)
            allocation = self._cache.get(
                pod.uid,
                (pod, whole, project, devices),
                partial(_allocation, pod, whole, project, devices),
            )
            found.setdefault(pod.node, []).append(allocation)
        return found


def _allocation(pod: Pod, whole: Job | None, project: str, devices: Sequence[int]) -> Allocation:
    is_one = whole is None or whole.is_array
    workload = f"{project}/{name_of(pod if whole is None or whole.is_array else whole)}"
    return Allocation(
        workload,
        f"{workload}-{0 if is_one else pod.index or 0}",
        project,
        pod.user if whole is None or whole.spec is None else whole.spec.user,
        shares_of(pod, devices),
        is_server=bool(pod.user),
        cgroup=pod.uid,
    )
