"""What is refused of workloads that are pods: JupyterHub or a Job starts and stops them.

On one machine a session's process is attached, and its GPUs can be released and regained; a pod has
its environment and keeps its GPUs from its first moment to its last.
"""

from runai.hub_service.clusters.kubernetes.workloads.lookup import WorkloadLookup
from runai.hub_service.model.records import Process, WorkerEnvironment, WorkloadId, WorkloadRecord
from runai.hub_service.wire.errors import Conflict


class PodSessions:
    """The parts of the contract that are for processes of this machine alone."""

    def __init__(self, lookup: WorkloadLookup) -> None:
        """Refuse, whatever pod it is; `lookup` raises NotFound for an unknown workload."""
        self._lookup = lookup

    async def attach(self, workload: WorkloadId, process: Process) -> WorkloadRecord:
        """Refuse, always: the session is its pod."""
        raise await self._is_a_pod(workload, f"process {process.pid} cannot be attached to it")

    async def release(self, workload: WorkloadId, *, why: str) -> WorkloadRecord:
        """Refuse, always: a pod keeps what it was given."""
        del why
        raise await self._is_a_pod(workload, "it keeps its GPUs until it ends")

    async def regain(self, workload: WorkloadId, *, by: str) -> WorkloadRecord:
        """Refuse, always: nothing was released."""
        del by
        raise await self._is_a_pod(workload, "it has lost none of its GPUs")

    async def environment(self, workload: WorkloadId, worker: int = 0) -> WorkerEnvironment:
        """Refuse, always: its pod has its environment. Say how to get a terminal there."""
        text = f"worker {worker} has its environment by itself"
        refusal = await self._is_a_pod(workload, text)
        for pod in await self._lookup.pods_of(workload):
            if (pod.index or 0) == worker and pod.is_up and pod.deleted is None:
                there = f"--namespace {pod.namespace} {pod.name}"
                refusal.hint = f"For a terminal there: kubectl exec -it {there} -- PROGRAM"
        raise refusal

    async def _is_a_pod(self, workload: WorkloadId, text: str) -> Conflict:
        await self._lookup.workload(workload)
        return Conflict(
            f"{workload} is a pod of Kubernetes: {text}.",
            hint="JupyterHub or its Job starts and stops it.",
            code="is_a_pod",
        )
