"""Who has which devices of which node, for the nodes' agents: they tell processes by their pods.

A process cannot leave the control group of its pod, whose UID stands in its name. Pure; called by
`cluster` whenever it draws its records anew.
"""

from collections.abc import Mapping, Sequence

from runai.hub_service.clusters.kubernetes.grouping import name_of, project_of
from runai.hub_service.clusters.kubernetes.objects import SCHEDULER
from runai.hub_service.clusters.kubernetes.showing import Known
from runai.hub_service.clusters.kubernetes.slots import shares_of
from runai.hub_service.clusters.records import Allocation

__all__ = ["held_by_node"]


def held_by_node(known: Known) -> Mapping[str, Sequence[Allocation]]:
    """Return the workers that hold devices, by node."""
    found: dict[str, list[Allocation]] = {}
    for pod in known.pods:
        if pod.scheduler != SCHEDULER or pod.is_reservation or not pod.holds:
            continue
        shares = shares_of(pod, known.devices.get(pod.uid, ()))
        if not shares:
            continue
        job = known.jobs.get(pod.owner.uid) if pod.owner is not None else None
        whole = job if job is not None and job.is_whole else None
        project = project_of(pod, known.namespaces, known.default_project)
        workload = f"{project}/{name_of(whole or pod)}"
        user = pod.user if whole is None or whole.spec is None else whole.spec.user
        allocation = Allocation(
            workload,
            f"{workload}-{0 if whole is None else pod.index or 0}",
            project,
            user,
            shares,
            is_server=bool(pod.user),
            cgroup=pod.uid,
        )
        found.setdefault(pod.node, []).append(allocation)
    return found
