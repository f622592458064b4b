"""Status of the Project objects, shown by `kubectl get projects`.

A status is written when it changes, all of them in parallel: a cycle waits only for the slowest. A
failed write is retried in the next cycle.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from runai.hub_service.clusters.kubernetes.actions.decision_executor import at_once
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError
from runai.hub_service.clusters.kubernetes.objects import project_resource as project_objects
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup
from runai.hub_service.model.records import ProjectRecord
from runai.hub_service.scheduler.model.snapshot import Plan


class ProjectStatuses:
    """Statuses of all projects as last written."""

    def __init__(self, api: Api) -> None:
        """Begin with no status written."""
        self._api = api
        self._written: dict[str, Mapping[str, Any]] = {}

    async def write(
        self,
        plan: Plan,
        records: Mapping[str, ProjectRecord],
        groups: Iterable[PodGroup],
        nodes: Collection[KubeNode],
    ) -> None:
        """Write the statuses that changed."""
        largest_mib = max((node.gpu_memory_mib for node in nodes), default=0)
        pending: Counter[str] = Counter()
        for group in groups:
            for pod in group.pods:
                if not pod.node:
                    pending[group.project] += pod.milli_gpus(largest_mib)
        wrong = project_objects.misplaced(records.values())
        found = {
            name: project_objects.status(
                record.spec, plan.projects.get(name), pending[name], wrong.get(name, "")
            )
            for name, record in records.items()
        }
        self._written = {name: was for name, was in self._written.items() if name in found}
        await at_once(
            partial(self._write, name, status)
            for name, status in found.items()
            if self._written.get(name) != status
        )

    async def _write(self, name: str, status: Mapping[str, Any]) -> None:
        try:
            await self._api.patch(f"{project_objects.PROJECTS}/{name}/status", {"status": status})
        except ApiError:
            return
        self._written[name] = status
