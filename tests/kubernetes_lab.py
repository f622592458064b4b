"""The contract suite's lab on a real Kubernetes control plane, with the chart's own rights.

kwok simulates the nodes, so a worker that a test ends is a pod that only claims to run. Plans of
the suite are carried out as a controller would: again in each cycle until they are true.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from control_plane.device_plugin import DevicePlugin
from control_plane.kubelet import Kubelet
from control_plane.lab import ClusterLab, allow_jobs
from control_plane.plane import ControlPlane
from labs import DEVICES, NODE, Clock, Lab, running
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.kubernetes_cluster import KubernetesCluster
from runai.hub_service.model.cluster import Refused
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler.model.snapshot import Plan, Resize, Start
from runai.hub_service.wire.elastic_messages import WorkerStatus
from waiting import eventually_async

INDEX = "batch.kubernetes.io/job-completion-index"


class RetryingCluster(KubernetesCluster):
    """A cluster that repeats starts: pods appear after their Job's release, and are bound then."""

    def __init__(self, api: Api, **options: Any) -> None:
        super().__init__(api, **options)
        self.to_start: dict[str, Start] = {}
        self.apply = self._apply

    async def _apply(self, plan: Plan) -> Sequence[Refused]:
        """Carry out a plan, and record its starts."""
        await self.observe()
        refused = await self.scheduling.apply(plan)
        refused_workers = {r.worker for r in refused}
        for decision in plan.decisions:
            if isinstance(decision, Start | Resize) and decision.worker not in refused_workers:
                start_fields = {f.name: getattr(decision, f.name) for f in fields(Start)}
                self.to_start[decision.worker] = Start(**start_fields)
            elif hasattr(decision, "worker"):
                self.to_start.pop(decision.worker, None)
        return refused

    async def retry_starts(self) -> None:
        """Retry the starts that were not possible yet, as the next cycle does."""
        workloads = (await self.observe()).workloads
        waiting = {w.name for found in workloads for w in found.workers if w.state == "reserved"}
        due = [start for name, start in self.to_start.items() if name in waiting]
        if due:
            await self.scheduling.apply(Plan(decisions=tuple(due)))


class RealTime(Clock):
    """The time of the API server's machine, plus the time that a test lets pass."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead

    @property
    def at(self) -> float:  # type: ignore[override]
        return self()

    @at.setter
    def at(self, at: float) -> None:
        self.ahead += at - self()


class KubernetesLab(Lab):
    """Jobs and pods of a real API server."""

    kind = "kubernetes"
    cluster: RetryingCluster  # type: ignore[assignment]

    def __init__(self, cluster: RetryingCluster, around: ClusterLab, clock: RealTime) -> None:
        super().__init__(cluster, clock)  # type: ignore[arg-type]
        self.around = around
        self._plugin = DevicePlugin(around.plane, {NODE: [d.uuid for d in DEVICES]})
        self._on_term: dict[str, int | str | None] = {}

    def record_on_term(self, spec: WorkloadSpec, on_term: int | str | None) -> None:
        self._on_term[spec.id] = on_term

    async def ready(self, spec: WorkloadSpec) -> None:
        async def all_run() -> bool:
            await self.nudge()
            workers = (await self.cluster.workload(spec.id)).workers
            return all(worker.state == "running" for worker in workers)

        await eventually_async(all_run, what=f"all of {spec.id} runs")
        answer = self._on_term[spec.id]
        # Long enough to be seen stopping, also where a call takes a second or two.
        seconds = spec.grace_seconds if answer == "ignore" else 4
        notes = {"test/stops-in": f"{seconds}s"}
        if isinstance(answer, int):
            notes["test/stops-with"] = str(answer)
        for pod in self._pods(spec):
            self.around.namespace.annotate(pod["metadata"]["name"], notes)

    def command(self, on_term: int | str | None) -> tuple[str, ...]:
        return ("train", str(on_term))

    async def until(self, workload: str, *states: str) -> WorkloadRecord:
        record: WorkloadRecord

        async def is_in_state() -> bool:
            nonlocal record
            await self.nudge()
            record = await self.cluster.workload(workload)
            return record.state in states

        await eventually_async(is_in_state, what=f"{workload} is {' or '.join(states)}")
        return record

    async def end(self, spec: WorkloadSpec, exit_code: int, *, worker: int = 0) -> None:
        """End a worker's program; an elastic job's pod first asks how to end itself."""
        name = await self._running_pod(spec, worker)
        if spec.elastic:
            exit_code = await self.cluster.elastic.worker_ended(name, exit_code)
        self.around.namespace.finish(name.partition("/")[2], exit_code)

    async def write(self, spec: WorkloadSpec, status: WorkerStatus) -> None:
        name = await self._running_pod(spec, int(status.worker.rpartition("-")[2]))
        await self.cluster.elastic.store_worker_status(name, status)
        await self.cluster.observe()

    async def sees(self, spec: WorkloadSpec) -> tuple[list[str], bool]:
        namespace, name = (await self._running_pod(spec, 0)).split("/")
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        pod = await asyncio.to_thread(self.around.plane.request, "GET", path)
        container, notes = pod["spec"]["containers"][0], pod["metadata"]["annotations"]
        environment = {e["name"]: _resolved(e, notes) for e in container["env"]}
        return environment["NVIDIA_VISIBLE_DEVICES"].split(","), environment["RUNAI_RESUMED"] == "1"

    async def _running_pod(self, spec: WorkloadSpec, worker: int) -> str:
        names: list[str] = []

        async def runs() -> bool:
            await self.nudge()
            names[:] = [
                pod["metadata"]["name"]
                for pod in self._pods(spec)
                if spec.array_index is not None
                or pod["metadata"]["annotations"][INDEX] == str(worker)
                if pod["status"]["phase"] == "Running"
            ]
            # The informer may lag behind, and the cluster carries out later plans by its own state.
            known = {w.index: w.state for w in (await self.cluster.workload(spec.id)).workers}
            return bool(names) and known.get(worker) in ("running", "stopping")

        await eventually_async(runs, what=f"worker {worker} of {spec.id} runs")
        return f"{self.around.namespace.name}/{names[0]}"

    def _pods(self, spec: WorkloadSpec) -> list[dict[str, Any]]:
        """Return the pods of a job; of an array's element its own."""
        if spec.array_index is None:
            return self.around.namespace.pods(f"{spec.project}-{spec.name}")
        pods = self.around.namespace.pods(f"{spec.project}-{spec.name.rpartition('-')[0]}")
        index = str(spec.array_index)
        return [pod for pod in pods if pod["metadata"]["annotations"][INDEX] == index]

    @contextlib.asynccontextmanager
    async def restarted(self) -> AsyncGenerator[RetryingCluster]:
        """Open the cluster anew, as the next service does."""
        async with serving(self.around, self.clock) as cluster:  # type: ignore[arg-type]
            yield cluster

    async def pass_time(self, seconds: float) -> None:
        """Do nothing: the API server's clock is the real one."""

    async def nudge(self) -> None:
        self._plugin.sync_pods()
        await self.cluster.retry_starts()


def _resolved(variable: dict[str, Any], notes: dict[str, str]) -> str:
    """Return a container's variable as a kubelet resolves it."""
    if "valueFrom" not in variable:
        return str(variable["value"])
    path = variable["valueFrom"]["fieldRef"]["fieldPath"]
    return notes.get(path.removeprefix("metadata.annotations['").removesuffix("']"), "")


@contextlib.asynccontextmanager
async def serving(around: ClusterLab, clock: RealTime) -> AsyncGenerator[RetryingCluster]:
    """Open the cluster as a service does that starts: it knows what the API server stores."""
    rights: Path = around.plane.service_account("runai", "runai-scheduler")
    async with await Api.connect(str(rights)) as api:
        cluster = RetryingCluster(
            api,
            namespace=around.namespace.name,
            image="example/train",
            api_url="http://runai/services/runai/",
            clock=clock,
        )
        async with running(cluster):  # type: ignore[arg-type]
            await cluster.observe()
            yield cluster


@contextlib.asynccontextmanager
async def kubernetes_lab(
    plane: ControlPlane, kubelet: Kubelet | None = None
) -> AsyncGenerator[KubernetesLab]:
    """Open a cluster in a namespace of its own; remove everything at the end.

    `kubelet`, if given, has the logs of the cluster's node.
    """
    around = ClusterLab(plane)
    allow_jobs(plane, around.namespace.name)
    has_logs = {} if kubelet is None else {"status": kubelet.status}
    around.node(NODE, gpus=4, labels={"nvidia.com/gpu.memory": "16000"}, **has_logs)
    clock = RealTime()
    try:
        async with serving(around, clock) as cluster:
            yield KubernetesLab(cluster, around, clock)
    finally:
        await asyncio.to_thread(around.remove)
