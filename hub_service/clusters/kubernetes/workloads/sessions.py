"""Refusals of session operations that do not apply to pods.

On one machine a session's process is attached, and its GPUs can be released and regained. A pod has
its own environment and keeps its GPUs until it ends; JupyterHub or a Job starts and stops it.
"""

from runai.hub_service.clusters.kubernetes.workloads.workload_lookup import WorkloadLookup
from runai.hub_service.model.records import Process, WorkerEnvironment, WorkloadId, WorkloadRecord
from runai.hub_service.wire.errors import Conflict


class PodSessions:
    """The parts of the cluster contract that apply only to local processes."""

    def __init__(self, lookup: WorkloadLookup) -> None:
        """Use `lookup`, which raises NotFound for an unknown workload."""
        self._lookup = lookup

    async def attach(
        self, workload: WorkloadId, process: Process, *, uid: str = ""
    ) -> WorkloadRecord:
        """Raise Conflict: the session is its pod."""
        text = f"process {process.pid} cannot be attached to it"
        raise await self._pod_conflict(workload, uid, text)

    async def release(self, workload: WorkloadId, *, why: str, uid: str = "") -> WorkloadRecord:
        """Raise Conflict: a pod keeps its GPUs."""
        del why
        raise await self._pod_conflict(workload, uid, "it keeps its GPUs until it ends")

    async def regain(self, workload: WorkloadId, *, by: str, uid: str = "") -> WorkloadRecord:
        """Raise Conflict: a pod never releases GPUs."""
        del by
        raise await self._pod_conflict(workload, uid, "it has lost none of its GPUs")

    async def environment(
        self, workload: WorkloadId, worker: int = 0, *, uid: str = ""
    ) -> WorkerEnvironment:
        """Raise Conflict: a pod has its own environment; the hint opens a terminal there."""
        text = f"worker {worker} has its environment by itself"
        refusal = await self._pod_conflict(workload, uid, text)
        for pod in await self._lookup.pods_of(workload, uid):
            if (pod.index or 0) == worker and pod.is_up and pod.deleted is None:
                there = f"--namespace {pod.namespace} {pod.name}"
                refusal.hint = f"For a terminal there: kubectl exec -it {there} -- PROGRAM"
        raise refusal

    async def _pod_conflict(self, workload: WorkloadId, uid: str, text: str) -> Conflict:
        await self._lookup.single_workload(workload, uid)
        return Conflict(
            f"{workload} is a pod of Kubernetes: {text}.",
            hint="JupyterHub or its Job starts and stops it.",
            code="is_a_pod",
        )
