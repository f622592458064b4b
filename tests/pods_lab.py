"""The contract suite's lab with pods of our own, on a real control plane with kube-scheduler.

kwok plays the kubelets, so a worker that a test ends is a pod that only claims to run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from kubernetes_lab import INDEX, RealTime
from labs import DEVICES, NODE, Lab, running
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.gpu_jobs.pod_executor import PodExecutor
from runai.hub_service.clusters.kubernetes.gpu_jobs.resource_store import ResourceStore
from runai.hub_service.clusters.kubernetes.gpu_jobs.worker_pod import ATTEMPT_LABEL
from runai.hub_service.clusters.kubernetes.objects.core_objects import WORKLOAD_LABEL
from runai.hub_service.clusters.kubernetes.objects.job_manifest import PodTemplateSource
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.model.records import Process, WorkloadSpec
from runai.hub_service.wire.elastic_messages import WorkerStatus
from waiting import eventually_async

RIGHTS = {
    ("jupyter-runai.dev", "gpujobs"): ("create", "delete", "list"),
    ("jupyter-runai.dev", "gpujobs/status"): ("update",),
    ("", "pods"): ("create", "delete", "list", "patch", "watch"),
    ("", "pods/status"): ("patch",),
}
"""Rights in the jobs' namespace, besides reading nodes."""


API_URL = "http://runai/services/runai/"


class PodsLab(Lab):
    """`GpuJob`s and pods of a real API server."""

    kind = "pods"

    def __init__(
        self, cluster: StoredCluster[PodExecutor], around: ClusterLab, clock: RealTime
    ) -> None:
        super().__init__(cluster, clock)
        self.around = around
        self._on_term: dict[str, int | str | None] = {}

    def command(self, on_term: int | str | None) -> tuple[str, ...]:
        return ("train", str(on_term))

    def record_on_term(self, spec: WorkloadSpec, on_term: int | str | None) -> None:
        self._on_term[spec.id] = on_term

    async def ready(self, spec: WorkloadSpec) -> None:
        async def all_run() -> bool:
            workers = (await self.cluster.workload(spec.id)).workers
            return all(worker.state == "running" for worker in workers)

        await eventually_async(all_run, what=f"all of {spec.id} runs")
        answer = self._on_term[spec.id]
        # Long enough to be seen stopping, also where a call takes a second or two.
        seconds = spec.grace_seconds if answer == "ignore" else 4
        notes = {"test/stops-in": f"{seconds}s"}
        if isinstance(answer, int):
            notes["test/stops-with"] = str(answer)
        for pod in await self._pods(spec):
            self.around.namespace.annotate(pod["metadata"]["name"], notes)

    async def end(self, spec: WorkloadSpec, exit_code: int, *, worker: int = 0) -> None:
        name = ""

        async def runs() -> bool:
            nonlocal name
            for pod in await self._pods(spec):
                is_its = pod["metadata"]["annotations"][INDEX] == str(worker)
                if is_its and pod["status"]["phase"] == "Running":
                    name = pod["metadata"]["name"]
            return bool(name)

        await eventually_async(runs, what=f"worker {worker} of {spec.id} runs")
        await asyncio.to_thread(self.around.namespace.finish, name, exit_code)

    async def write(self, spec: WorkloadSpec, status: WorkerStatus) -> None:
        self.cluster.report_statuses(spec.id, {status.worker: status})

    async def session_process(self) -> Process:
        return Process(4711, self.clock())

    async def _pods(self, spec: WorkloadSpec) -> list[dict[str, Any]]:
        """Return the pods of a workload's last attempt."""
        attempts = (await self.cluster.workload(spec.id)).attempts
        found = await asyncio.to_thread(self.around.namespace.pods)
        wanted = {WORKLOAD_LABEL: spec.name, ATTEMPT_LABEL: str(attempts)}
        return [pod for pod in found if wanted.items() <= pod["metadata"]["labels"].items()]


def give_rights(
    plane: ControlPlane, namespace: str, rights: Mapping[tuple[str, str], Sequence[str]]
) -> Path:
    """Give an account verbs on resources of a namespace, by API group; return its kubeconfig."""
    bind(plane, f"/namespaces/{namespace}", "Role", "jobs", namespace, rights)
    return plane.service_account(namespace, "default")


def bind(
    plane: ControlPlane,
    where: str,
    kind: str,
    name: str,
    namespace: str,
    rights: Mapping[tuple[str, str], Sequence[str]],
) -> None:
    """Make a role of this kind, and bind it to a namespace's default account."""
    group = "rbac.authorization.k8s.io"
    path = f"/apis/{group}/v1{where}/{kind.lower()}"
    rules = [
        {"apiGroups": [of], "resources": [resource], "verbs": list(verbs)}
        for (of, resource), verbs in rights.items()
    ]
    plane.request("POST", f"{path}s", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    plane.request("POST", f"{path}bindings", binding)


@contextlib.asynccontextmanager
async def serving_pods(
    rights: Path, namespace: str, clock: RealTime
) -> AsyncGenerator[StoredCluster[PodExecutor]]:
    """Open the cluster as a service does that starts: it knows what the API server stores."""
    async with await Api.connect(str(rights)) as api:
        store = await ResourceStore.open(api, namespace, clock=clock)
        source = PodTemplateSource("example/train")
        cluster = StoredCluster(
            store,
            {},
            lambda cluster: PodExecutor(
                *(cluster, api, store, namespace, lambda _spec: source),
                api_url=API_URL,
                patience_s=60,  # of a busy machine
                clock=clock,
            ),
            clock=clock,
        )
        async with running(cluster):
            await cluster.executor.nodes_listed()
            try:
                yield cluster
            finally:
                await store.close()


@contextlib.asynccontextmanager
async def pods_lab(plane: ControlPlane) -> AsyncGenerator[PodsLab]:
    """Open a cluster in a namespace of its own; remove everything at the end."""
    around = ClusterLab(plane)
    memory = str(DEVICES[0].memory_mib)
    around.node(NODE, gpus=len(DEVICES), labels={"nvidia.com/gpu.memory": memory})
    rights = give_rights(plane, around.namespace.name, RIGHTS)
    nodes = {("", "nodes"): ("list", "watch")}
    name = f"nodes-of-{around.namespace.name}"
    bind(plane, "", "ClusterRole", name, around.namespace.name, nodes)
    clock = RealTime()
    try:
        async with serving_pods(rights, around.namespace.name, clock) as cluster:
            yield PodsLab(cluster, around, clock)
    finally:
        await asyncio.to_thread(around.remove)
