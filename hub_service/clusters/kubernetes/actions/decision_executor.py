"""API calls that carry out decisions: bind, evict, suspend, write why a pod waits.

A decision that the cluster no longer allows is refused alone; the next cycle sees the new state. If
the outcome of a call is unknown, the pod is read again before the next decision.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import MappingProxyType

from runai.hub_service.clusters.kubernetes.actions.pdb_backoff import ProtectedPod
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.events.pod_conditions import (
    binding,
    eviction,
    patch_wait_condition,
    pod_path,
    reason_sentence,
    report_waiting,
)
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import Slot
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_reconciler import (
    ReservationReconciler,
)
from runai.hub_service.clusters.kubernetes.objects.array_elements import ArrayJob, with_moves
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    Pod,
    read_pod,
    remove_finalizer_patch,
)
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import BoundDevices
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    Job,
    Ran,
    Steps,
    resizing,
    suspend_patch,
    unsuspend_patch,
    wait_reason_patch,
    with_elements,
    with_pauses,
)
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup
from runai.hub_service.clusters.kubernetes.objects.run_time import TimeLimited
from runai.hub_service.clusters.kubernetes.objects.volume_binding import (
    VOLUMES,
    Claim,
    Volume,
    bind_patch,
    selected,
)
from runai.hub_service.model.cluster import Refused
from runai.hub_service.scheduler.model.snapshot import Move, Reserve, Resize, Start, Stop, Wait

CALLS_AT_ONCE = 16

ApiCall = Callable[[], Awaitable[None]]


class DecisionExecutor:
    """Executor of one plan's decisions, and their outcomes."""

    def __init__(
        self,
        api: Api,
        sharing: ReservationReconciler,
        events: EventQueue,
        limited: Mapping[str, TimeLimited] = MappingProxyType({}),
    ) -> None:
        """Begin with no outcomes; `events` is the background queue of Events.

        `limited` are the workloads with a time limit: a stop notes how long they ran.
        """
        self._limited = limited
        self._api = api
        self._sharing = sharing
        self._events = events
        self.refused: list[Refused] = []
        self.bound: dict[str, tuple[Start, BoundDevices | None]] = {}
        """Starts that were bound, by the pod's UID."""
        self.evicted: set[str] = set()
        self.wait_reasons: dict[str, str] = {}
        """Waiting reasons written to pods, by UID."""
        self.changed_jobs: list[Object] = []
        """Jobs after our changes."""
        self.freed: set[str] = set()
        """UIDs of Jobs that were unsuspended and must create their pods now."""
        self.paused: set[str] = set()
        """UIDs of Jobs that were suspended and must have no pods now."""
        self.surplus: set[str] = set()
        """UIDs of waiting pods that their arrays' Jobs remove."""
        self.protected: list[ProtectedPod] = []
        """Pods that disruption budgets (PDBs) protect from eviction."""
        self.doubtful: dict[str, Pod] = {}
        """Pods for which the outcome of our call is unknown, by UID."""
        self._events_of_jobs: set[tuple[str, str]] = set()
        """Stops reported on Jobs: UID and sentence."""

    async def start(
        self, decision: Start, pod: Pod, grant: BoundDevices | None, notes: Mapping[str, str]
    ) -> None:
        """Bind a pod to the node and device shares of the plan.

        The same request sets the annotations `notes`, by which the pod learns of its devices.
        """
        try:
            await self._api.create(pod_path(pod, "binding"), binding(pod, decision.node, notes))
        except ApiError as error:
            self._refuse(decision, pod, error)
            return
        self.bound[pod.uid] = decision, grant
        self._events.enqueue(pod, "Scheduled", f"Runs on {decision.node}.")
        if pod.remark:
            self._events.enqueue(pod, "NotElastic", pod.remark)

    async def reserve(self, decision: Start, name: str, slot: Slot) -> None:
        """Create the reservation of a device that pods will share."""
        try:
            await self._sharing.reserve(name, slot)
        except ApiError as error:
            # Whatever the outcome: a retry creates the same reservation.
            self.refused.append(Refused(decision.workload, decision.worker, error.message))

    async def provide(self, decision: Start, claim: Claim, volume: Volume | None) -> None:
        """Bind a claim on the chosen node, to an existing volume or a provisioned one."""
        try:
            if volume is None:
                await self._api.patch(claim.path, selected(claim, decision.node))
            else:
                await self._api.patch(f"{VOLUMES}/{volume.name}", bind_patch(volume, claim))
        except ApiError as error:
            # The informer shows the outcome; another binder may have been first.
            self.refused.append(Refused(decision.workload, decision.worker, error.message))

    async def stop(self, decision: Stop | Move, pod: Pod, job: Job | None = None) -> None:
        """Evict a pod, of a whole `job` or by itself; no failure is counted.

        The Event with the reason skips the queue: the pod can be read only until it is deleted.
        """
        path = pod_path(pod, "eviction")
        try:
            version = await self._exclude_from_count(pod) if pod.counting else ""
            # An exhausted disruption budget answers 429 like a throttled server.
            await self._api.create(path, eviction(pod, version), retry=False)
        except ApiError as error:
            if error.is_by_budget:
                self.protected.append(ProtectedPod(pod, decision.reason.for_ or "", error.message))
            if error.status != 404:
                self._refuse(decision, pod, error)
            return
        self.evicted.add(pod.uid)
        self._report_stop(*_event_of(decision), [pod], job)

    def _report_stop(self, word: str, sentence: str, pods: Iterable[Pod], job: Job | None) -> None:
        """Enqueue the Events of a stop: of each pod, and one of the whole Job."""
        for pod in pods:
            self._events.enqueue(pod, word, sentence, is_ending=True)
        if job is not None and (job.uid, sentence) not in self._events_of_jobs:
            self._events_of_jobs.add((job.uid, sentence))
            self._events.enqueue(job, word, sentence)

    async def _exclude_from_count(self, pod: Pod) -> str:
        """Let a Job not count a pod's end; return the pod's resourceVersion for its eviction.

        If the pod has another version by then, it may have succeeded: it is not evicted, and is
        counted again at the next cycle.
        """
        change = remove_finalizer_patch(pod.uid)
        found = await self._api.patch(pod_path(pod, "status"), change, strategic=True)
        if read_pod(found).is_finished:
            raise ApiError(HTTPStatus.CONFLICT, "Conflict", f"{pod.key} has ended")
        version: str = found["metadata"]["resourceVersion"]
        return version

    async def suspend_job(self, decision: Stop | Move, group: PodGroup, now: float) -> None:
        """Suspend a whole Job: its pods are deleted, its queue place stays.

        The reason is written to the Job; Events are sent in the background.
        """
        assert group.job is not None
        sentence = reason_sentence(decision.reason)
        running = [pod for pod in group.pods if pod.node and pod.deleted is None]
        ran = self._ran(group.job.uid, now)
        moved, priority = _moved(decision), group.first.priority
        change = suspend_patch(
            group.job, now=now, why=sentence, priority=priority, moved=moved, ran=ran
        )
        if await self._change(decision, group.job, change):
            self._report_stop(*_event_of(decision), running, group.job)
            self.evicted.update(pod.uid for pod in running)
            self.paused.add(group.job.uid)

    def _ran(self, job: str, now: float) -> dict[int, Ran]:
        """Return what a whole Job ran until now, for its patch; {} without a limit."""
        found = self._limited.get(job)
        return {} if found is None else {0: Ran(found.seconds_at(now), now)}

    async def resize(self, decision: Resize, group: PodGroup, now: float) -> None:
        """Stop a Job's only pod so that it restarts on other devices of its node.

        This does not count as a pause.
        """
        assert group.job is not None
        sentence = reason_sentence(decision.reason)
        ran = self._ran(group.job.uid, now)
        change = resizing(group.job, why=sentence, priority=group.first.priority, ran=ran)
        if await self._change(decision, group.job, change):
            running = [pod for pod in group.pods if pod.node and pod.deleted is None]
            self._report_stop("Resized", sentence, running, group.job)
            self.evicted.update(pod.uid for pod in running)

    async def unsuspend_job(self, decision: Start, group: PodGroup, now: float) -> None:
        """Unsuspend a Job so that it creates its pods; each is bound when it exists."""
        assert group.job is not None
        if await self._change(decision, group.job, unsuspend_patch(group.job, now=now)):
            self.freed.add(group.job.uid)
            if moved := group.job.moved:
                seconds = now - group.job.pauses[-1] if group.job.pauses else 0
                self._events.enqueue(group.job, "Resumed", f"{moved}, {seconds:.0f} s")

    async def start_elements(
        self, decision: Start, array: ArrayJob, parallelism: int, now: float
    ) -> None:
        """Have an array's Job make the pods of elements that start; each is bound later."""
        if await self._change(decision, array.job, with_elements(array.job, parallelism, now=now)):
            self.freed.add(array.job.uid)

    async def pause_elements(
        self, array: ArrayJob, stops: Sequence[tuple[Stop | Move, Pod]], now: float
    ) -> None:
        """Store that elements of an array are paused and will resume; then evict their pods."""
        indexes = [pod.index or 0 for _, pod in stops]
        limited = {i: self._limited.get(f"{array.job.uid}/{i}") for i in indexes}
        ran = {i: Ran(one.seconds_at(now), now) for i, one in limited.items() if one is not None}
        moves = {pod.index or 0: _moved(decision) for decision, pod in stops}
        change = with_pauses(array.job, indexes, now=now, ran=ran) + with_moves(array.job, moves)
        if await self._change(stops[0][0], array.job, change):
            await at_once(partial(self.stop, decision, pod) for decision, pod in stops)

    async def drop_surplus(self, decision: Wait, array: ArrayJob, pods: Sequence[Pod]) -> None:
        """Have an array's Job remove the pods of elements that cannot start now."""
        change = with_elements(array.job, len(array.bound), now=0.0)
        if await self._change(decision, array.job, change):
            self.surplus.update(pod.uid for pod in pods)

    async def _change(
        self, decision: Start | Stop | Move | Resize | Wait, job: Job, change: Steps
    ) -> bool:
        """Patch a Job; return True on success, else record the decision as refused."""
        try:
            found = await self._api.change(job.path, change)
        except ApiError as error:
            # The informer shows the outcome; the JSON Patch tests each value that it changes.
            worker = "" if isinstance(decision, Wait) else decision.worker
            self.refused.append(Refused(decision.workload, worker, error.message))
            return False
        self.changed_jobs.append(found)
        return True

    async def wait(self, decision: Wait, pod: Pod, node: str, sentence: str) -> None:
        """Write why a pod waits, and its nominated `node` if there is one."""
        await self._write_reason(pod, decision.reason.code, sentence, node)

    async def promise(self, pod: Pod, node: str, sentence: str) -> None:
        """Write that devices are reserved for a pod; its Event is sent in the background.

        The nominated node is set as kube-scheduler does, so that autoscalers see it too.
        """
        if pod.sentence != sentence:
            writing = patch_wait_condition(self._api, pod, "stopping", sentence, node)
            if not await self._try_write(writing):
                return
            self.wait_reasons[pod.uid] = sentence
            self._events.enqueue(pod, "Waiting", sentence)

    async def refuse(self, pod: Pod, sentence: str) -> None:
        """Write why a pod can never start as it is."""
        await self._write_reason(pod, "not_supported", sentence)

    async def report_why_suspended(self, job: Job, sentence: str) -> None:
        """Write why a suspended Job waits, on the Job itself for `kubectl describe`.

        The Event follows only after that write: sent before, it would be repeated at each retry.
        """
        if job.template.sentence == sentence:
            return
        try:
            found = await self._api.change(job.path, wait_reason_patch(job, sentence))
        except ApiError as error:
            if error.status not in (404, 422):  # deleted, or not suspended any more
                self.refused.append(Refused("", "", f"could not be told: {error.message}"))
            return
        self.changed_jobs.append(found)
        self._events.enqueue(job, "Waiting", sentence)

    async def _write_reason(self, pod: Pod, code: str, sentence: str, node: str = "") -> None:
        if pod.sentence != sentence:
            writing = report_waiting(self._api, pod, code, sentence, node)
            if await self._try_write(writing):
                self.wait_reasons[pod.uid] = sentence

    async def _try_write(self, writing: Awaitable[None]) -> bool:
        """Write a reason; return True if it was written or never can be, False to retry."""
        try:
            await writing
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                self.refused.append(Refused("", "", f"could not be told: {error.message}"))
            return error.is_for_good
        return True

    def _refuse(self, decision: Start | Stop | Move | Resize, pod: Pod, error: ApiError) -> None:
        """Record a decision as refused, and its pod as doubtful if the outcome is unknown."""
        if error.is_unanswered:
            self.doubtful[pod.uid] = pod
        self.refused.append(Refused(decision.workload, decision.worker, error.message))


def promised(decision: Reserve) -> str:
    """Return the sentence that names the workloads a reserved place waits for."""
    terminating = ", ".join(decision.waits_for)
    return f"its place on {decision.node} is kept until {terminating} left it (R7)"


def _moved(decision: Stop | Move) -> str:
    """Return the reason of a move; of another stop ""."""
    return decision.reason.text if isinstance(decision, Move) else ""


def _event_of(decision: Stop | Move) -> tuple[str, str]:
    """Return the reason and the message of a stop's Event; a move's message names no rule."""
    if isinstance(decision, Move):
        return "Moved", decision.reason.text
    return "Preempted", reason_sentence(decision.reason)


async def at_once(calls: Iterable[ApiCall]) -> None:
    """Run calls in order, at most 16 at a time."""
    left = iter(calls)

    async def run_next() -> None:
        for call in left:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLS_AT_ONCE):
            group.create_task(run_next())
