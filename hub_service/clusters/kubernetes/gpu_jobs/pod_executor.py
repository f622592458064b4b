"""Executor of pods of our own: makes, opens and ends pods, and reports their fate.

Level-triggered: each pass compares the rows with the pods and acts on the difference, so a restart
of the service needs nothing else. A pod is made, opened or deleted after its row is stored.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.gpu_jobs.resource_store import ResourceStore
from runai.hub_service.clusters.kubernetes.gpu_jobs.worker_pod import (
    ATTEMPT_LABEL,
    OPENED,
    WorkerPod,
    exit_of,
    nomination,
    pod_name,
    read_worker_pod,
    worker_pod,
)
from runai.hub_service.clusters.kubernetes.informers.informer import Informer
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod, read_node
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    AS_NOTEBOOKS,
    Confinement,
    PodTemplateSource,
    manifest,
)
from runai.hub_service.clusters.kubernetes.objects.job_names import job_name
from runai.hub_service.clusters.kubernetes.workloads import logs
from runai.hub_service.clusters.kubernetes.workloads.gpu_inventory import inventory
from runai.hub_service.clusters.states.device_faults import with_faults
from runai.hub_service.clusters.states.set_aside import put_off_start, set_aside, taken_up
from runai.hub_service.clusters.workloads.agent_allocations import AgentAllocations
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.clusters.workloads.timetable import Timetable
from runai.hub_service.clusters.workloads.worker_environment import worker_environment
from runai.hub_service.limits.sharing import TimeSliced
from runai.hub_service.model.arrays import array_id
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    Allocation,
    Process,
    StateReason,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.wire.errors import NotFound, RunaiError

LOG: Final = logging.getLogger("runai.kubernetes")

PATIENCE_S: Final = 2.0
"""Seconds that kube-scheduler may refuse a pod: it may hear of a victim's end later."""
RETRY_S: Final = 2.0
CALLS_AT_ONCE: Final = 16
BACK_OFF_S, LONGEST_BACK_OFF_S = 10.0, 300.0
"""Seconds until a refused job is tried again; each refusal doubles the time."""
GANG_PORT: Final = 29500

Call = Callable[[], Awaitable[None]]


class PodExecutor:
    """Workers as pods that belong to their job's `GpuJob`."""

    def __init__(
        self,
        cluster: StoredCluster["PodExecutor"],
        api: Api,
        store: ResourceStore,
        namespace: str,
        source_of: Callable[[WorkloadSpec], PodTemplateSource],
        *,
        api_url: str = "",
        bounds: Confinement = AS_NOTEBOOKS,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make pods in `namespace`, with the image and volumes that `source_of` returns."""
        self._cluster = cluster
        self._api = api
        self._store = store
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._source_of = source_of
        self._api_url = api_url
        self._bounds = bounds
        self._patience_s = patience_s
        self._clock = clock
        self._touched: dict[WorkloadId, None] = {}
        """Workloads with a changed row; a pass covers them and all with pods."""
        self._known: defaultdict[WorkloadId, set[str]] = defaultdict(set)
        """Names of the pods that this service made or saw, of each workload that is there."""
        self._refused_since: dict[str, float] = {}
        """Time of this process's own clock since which kube-scheduler refuses a pod, by UID."""
        self._back_offs: dict[WorkloadId, float] = {}
        self._faults: dict[str, str] = {}
        """Reported faults of devices by UUID."""
        self._calls: dict[WorkloadId, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._is_changed = asyncio.Event()
        self._next_change = asyncio.Event()
        self._allocations = AgentAllocations()
        self._timetable = Timetable(cluster.apply_due_transitions, clock)
        self._pod_informer = Informer(
            api, self._path, read_worker_pod, self._announce, labelSelector=ATTEMPT_LABEL
        )
        self._node_informer = Informer(api, "/api/v1/nodes", read_node, self._set_nodes)

    async def run(self) -> NoReturn:
        """Run the background tasks until cancelled; adopt running pods first."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._pod_informer.run(), self._node_informer.run(), self._store.run()):
                tasks.create_task(work)
            await self._pod_informer.listed()
            await self._node_informer.listed()
            for row in list(self._cluster.index.values()):
                self._touched[row.id] = None
                if row.is_set_aside:
                    self._take_up(row.id)
            self._is_changed.set()
            tasks.create_task(self._timetable.run())
            await self._run_passes()
        raise AssertionError

    async def nodes_listed(self) -> None:
        """Return when the cluster has its nodes."""
        await self._node_informer.listed()

    # -- calls of the cluster --------------------------------------------------------------------

    def act(self, row: WorkloadRecord) -> None:
        """Look at the row in the next pass."""
        self._touched[row.id] = None
        self._timetable.announce()
        self._announce()

    def forgetting(
        self, row: WorkloadRecord, *, aged: bool = False
    ) -> AbstractContextManager[None]:
        """Remove nothing here: a resource takes its pods along."""
        del aged
        self._back_offs.pop(row.id, None)
        self._known.pop(row.id, None)
        return nullcontext()

    async def check(self, spec: WorkloadSpec) -> None:
        """Check that pods of a job can be made; JupyterHub makes the pods of sessions."""
        if spec.command is not None:
            self._template(spec, job_name(spec))

    def account_uid(self, user: str) -> int | None:
        """Return None: pods have no Unix accounts."""
        del user
        return None

    def directories(self, spec: WorkloadSpec, now: float) -> tuple[str, str]:
        """Return none: checkpoints are in volumes."""
        del spec, now
        return "", ""

    def free_port(self) -> int:
        """Return one port for all: each pod has an address of its own."""
        return GANG_PORT

    def variables(
        self, row: WorkloadRecord, worker: WorkerRecord, devices: Sequence[Device]
    ) -> dict[str, str]:
        """Return a worker's environment."""
        url = self._api_url
        return worker_environment(row, worker, devices, api_url=url, sharing=TimeSliced())

    def recognised(self, row: WorkloadRecord, process: Process) -> Process:
        """Return the process itself."""
        del row
        return process

    def adopt(self, row: WorkloadRecord, process: Process) -> None:
        """Do nothing: a session's pod has its requests."""

    def faults(self, reported: Mapping[str, str]) -> Mapping[str, str]:
        """Return the reported faults, which stay when a node changes."""
        self._faults |= reported
        return reported

    def allocations(
        self, node: str, devices: Sequence[Device], rows: Iterable[WorkloadRecord]
    ) -> Sequence[Allocation]:
        """Return the workers that run or stop on a node."""
        return self._allocations.on_node(node, devices, rows)

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return nothing: progress reports are files inside the pods."""
        del only
        return {}

    async def logs(
        self,
        record: WorkloadRecord,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
    ) -> AsyncGenerator[LogChunk]:
        """Yield the logs of a workload's pods, from their kubelets."""

        async def poll() -> logs.LogSources:
            change = self._next_change
            current = self._cluster.current_record(record.id, record.uid)
            if current is None:
                raise NotFound(f"There is no workload {record.id} any more.", hint="")
            return logs.LogSources(current, self._pods_by_workload()[record.id], change)

        if follow:
            chunks = logs.follow(self._api, poll, worker=worker, tail=tail, parts=parts)
        else:
            chunks = logs.read(self._api, await poll(), worker=worker, tail=tail)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    # -- passes ----------------------------------------------------------------------------------

    def _announce(self) -> None:
        self._is_changed.set()
        self._next_change.set()
        self._next_change = asyncio.Event()

    def _set_nodes(self) -> None:
        """Show the cluster the nodes, with the devices of closed ones out of use."""
        nodes = sorted(self._node_informer.objects.items())
        self._cluster.set_nodes(
            {name: with_faults(_devices(node), self._faults) for name, node in nodes},
            {name: NodeCapacity(node.cpu_milli, node.memory_mib) for name, node in nodes},
        )

    def _pods_by_workload(self) -> Mapping[WorkloadId, list[Pod]]:
        found: dict[WorkloadId, list[Pod]] = defaultdict(list)
        for each in self._pod_informer.objects.values():
            found[each.workload].append(each.pod)
        return found

    async def _run_passes(self) -> NoReturn:
        while True:
            await self._is_changed.wait()
            self._is_changed.clear()
            pods: dict[WorkloadId, dict[tuple[int, int], WorkerPod]] = defaultdict(dict)
            for each in self._pod_informer.objects.values():
                pods[each.workload][each.key] = each
                self._known[each.workload].add(each.pod.name)
            present = {each.pod.uid for found in pods.values() for each in found.values()}
            for uid in self._refused_since.keys() - present:
                del self._refused_since[uid]
            touched, self._touched = self._touched, {}
            for workload in dict.fromkeys((*touched, *pods)):
                if workload not in self._calls:
                    self._reconcile(workload, pods.get(workload, {}))
                elif workload in touched:
                    self._touched[workload] = None  # looked at again when its calls have ended
            await asyncio.sleep(0)

    def _reconcile(self, workload: WorkloadId, pods: dict[tuple[int, int], WorkerPod]) -> None:
        """Report the fate of a workload's pods, then begin the calls for its row."""
        row = self._cluster.row(workload)
        if row is None:
            self._known.pop(workload, None)
        elif row.spec.command is not None:
            try:
                reported = [self._report(row, worker, pods) for worker in row.active]
            except RunaiError as refused:  # a store that cannot take it now
                LOG.warning("%s is looked at again: %s", workload, refused)
                reported = []
                self._look_again(workload, RETRY_S)
            if any(reported):
                self._touched[workload] = None
                self._is_changed.set()
                return
        calls = list(self._calls_for(row, pods))
        if calls:
            self._calls[workload] = asyncio.create_task(self._call(workload, calls))

    def _report(
        self,
        row: WorkloadRecord,
        worker: WorkerRecord,
        pods: Mapping[tuple[int, int], WorkerPod],
    ) -> bool:
        """Report a worker's pod if it began or ended; return True if that changed the row."""
        found = pods.get((worker.index, worker.attempt))
        is_stopping = worker.state == "stopping"
        if found is None:
            is_new = self._name(row, worker) not in self._known[row.id]
            if worker.state == "starting" and is_new:
                return False  # to be made
            self._cluster.report_exit(row.id, worker.index, exit_of(None, is_stopping=is_stopping))
            return True
        if found.pod.is_finished:
            self._cluster.report_exit(row.id, worker.index, exit_of(found, is_stopping=is_stopping))
            return True
        if worker.state == "starting" and found.pod.is_up:
            self._back_offs.pop(row.id, None)
            self._cluster.report_running(row.id, worker.index, Process(0, found.pod.created))
            return True
        return worker.state == "starting" and self._is_taken_back(row, worker, found)

    def _is_taken_back(self, row: WorkloadRecord, worker: WorkerRecord, found: WorkerPod) -> bool:
        """Take a whole job back that kube-scheduler has refused for too long."""
        if not found.refusal or found.pod.is_gated:
            self._refused_since.pop(found.pod.uid, None)
            return False
        now = asyncio.get_running_loop().time()
        left_s = self._refused_since.setdefault(found.pod.uid, now) + self._patience_s - now
        if left_s > 0:
            self._look_again(row.id, left_s)
            return False
        text = f"kube-scheduler does not place it on {worker.node}: {found.refusal}"
        return self._put_off(row.id, worker.attempt, text)

    def _put_off(self, workload: WorkloadId, attempt: int, text: str) -> bool:
        """Let a whole job wait that cannot start now; return False if it does not start."""
        row, reason = self._cluster.row(workload), StateReason("refused", text)
        if row is None:
            return False
        put_off = put_off_start(row, attempt, reason, now=self._clock()) or set_aside(row, reason)
        if put_off is None:
            return False
        pause_s = self._back_offs.get(workload, BACK_OFF_S)
        self._back_offs[workload] = min(2 * pause_s, LONGEST_BACK_OFF_S)
        self._cluster.commit({workload: put_off})
        asyncio.get_running_loop().call_later(pause_s, self._take_up, workload)
        return True

    def _take_up(self, workload: WorkloadId) -> None:
        """Put a job back into the queue that was taken back, when it has no pods left."""
        row = self._cluster.row(workload)
        if row is None or row.intent != "run":
            return
        if row.active:
            asyncio.get_running_loop().call_later(RETRY_S, self._take_up, workload)
        elif row.is_set_aside:
            self._cluster.commit({workload: taken_up(row)})

    def _look_again(self, workload: WorkloadId, seconds: float) -> None:
        def look() -> None:
            self._touched[workload] = None
            self._is_changed.set()

        asyncio.get_running_loop().call_later(seconds, look)

    # -- calls of the API server -----------------------------------------------------------------

    def _calls_for(
        self, row: WorkloadRecord | None, pods: Mapping[tuple[int, int], WorkerPod]
    ) -> Iterator[Call]:
        """Yield the calls that give a workload the pods of its row."""
        expected: dict[tuple[int, int], WorkerRecord] = {}
        for worker in row.workers if row is not None and row.spec.command is not None else ():
            if worker.state in ("starting", "running"):
                expected[worker.index, worker.attempt] = worker
            elif worker.state == "reserved" and row is not None:
                expected[worker.index, row.attempts + 1] = worker
        for key, worker in expected.items():
            assert row is not None
            is_gated = worker.state == "reserved"
            if (found := pods.get(key)) is None:
                yield partial(self._make, row, worker, key[1], is_gated=is_gated)
            elif found.pod.is_gated and not is_gated and found.pod.deleted is None:
                yield partial(self._open, found)
        for key, found in pods.items():
            is_past = row is None or found.attempt < row.attempts
            is_over = found.pod.is_finished and not is_past  # its log is readable until the next
            if key not in expected and found.pod.deleted is None and not is_over:
                yield partial(self._delete, found)

    async def _call(self, workload: WorkloadId, calls: Sequence[Call]) -> None:
        """Run calls after the row is stored; look at the workload again if one fails."""
        try:
            await self._store.stored([workload])
            outcomes = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
        except (ApiError, RunaiError) as failed:
            LOG.warning("%s is tried again: %s", workload, failed)
            self._look_again(workload, RETRY_S)
        finally:
            self._calls.pop(workload, None)
            self._is_changed.set()

    async def _make(
        self, row: WorkloadRecord, worker: WorkerRecord, attempt: int, *, is_gated: bool
    ) -> None:
        """Make a worker's pod; after a refusal its job waits, with the reason."""
        resource = self._store.resource(array_id(row))
        if resource is None:
            return  # deleted meanwhile
        template = self._template(row.spec, resource.name)
        body = worker_pod(template, row, worker, attempt, resource, is_gated=is_gated)
        path = f"{self._path}/{body['metadata']['name']}/status"
        try:
            async with self._slots:
                made = await self._api.create(self._path, body)
                if is_gated:
                    made = await self._api.patch(path, nomination(worker))
        except ApiError as refused:
            if refused.status == 409:
                return  # it was made before
            if not refused.is_for_good:
                raise
            self._put_off(row.id, attempt, f"Kubernetes refuses its pod: {refused.message}")
            return
        self._known[row.id].add(body["metadata"]["name"])
        self._pod_informer.apply(made)

    def _template(self, spec: WorkloadSpec, name: str) -> Object:
        """Return the template of a job's pods.

        Raises:
            InvalidRequest: the job is not possible on Kubernetes.
        """
        source, url = self._source_of(spec), self._api_url
        job = manifest(spec, source, name=name, api_url=url, bounds=self._bounds)
        template: Object = job["spec"]["template"]
        return template

    async def _open(self, found: WorkerPod) -> None:
        """Take the gate away: the devices are free."""
        async with self._slots:
            self._pod_informer.apply(await self._api.patch(self._path_of(found), OPENED))

    async def _delete(self, found: WorkerPod) -> None:
        """Delete a pod: its programs have their grace period."""
        try:
            async with self._slots:
                deleted = await self._api.delete(
                    self._path_of(found), {"preconditions": {"uid": found.pod.uid}}
                )
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        else:
            if "deletionTimestamp" in deleted.get("metadata", {}):
                self._pod_informer.apply(deleted)

    def _path_of(self, found: WorkerPod) -> str:
        return f"{self._path}/{found.pod.name}"

    def _name(self, row: WorkloadRecord, worker: WorkerRecord) -> str:
        """Return the name of a worker's pod; "" before its job's resource is there."""
        resource = self._store.resource(array_id(row))
        return "" if resource is None else pod_name(resource.name, worker.index, worker.attempt)


def _devices(node: KubeNode) -> Sequence[Device]:
    devices = inventory(node, {}, [])
    if node.is_open:
        return devices
    return [replace(device, fault="its node takes no new pods") for device in devices]
