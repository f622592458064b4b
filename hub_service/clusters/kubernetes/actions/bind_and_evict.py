"""Carry out decisions by calls of the API: bind, evict, say why somebody waits.

A decision that the world no longer allows costs only itself: it is refused and the next cycle sees
what is. Where nobody knows whether a call was carried out, the pod is looked at again before the
next decision. Knows no caches; `cluster` gives it pods as they were when the plan was made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus

from runai.hub_service.clusters.kubernetes.actions.pdb_backoff import Kept
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.events.pod_conditions import (
    binding,
    eviction,
    pod_path,
    show_waiting,
    tell_waiting,
    why,
)
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_keeper import Sharing
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import Slot
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod, left_out, read_pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import Grant
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    Job,
    Steps,
    held,
    let_go,
    resizing,
    told,
)
from runai.hub_service.clusters.kubernetes.objects.pod_groups import Group
from runai.hub_service.clusters.kubernetes.objects.volume_topology import (
    VOLUMES,
    Claim,
    Volume,
    selected,
    taken_by,
)
from runai.hub_service.model.cluster import Refused
from runai.hub_service.scheduler.model.snapshot import Move, Reserve, Resize, Start, Stop, Wait

CALLS_AT_ONCE = 16

Call = Callable[[], Awaitable[None]]


class Acting:
    """What came of the decisions of one plan."""

    def __init__(self, api: Api, sharing: Sharing, events: EventQueue) -> None:
        """Begin with nothing done; `events` are those that nobody has to wait for."""
        self._api = api
        self._sharing = sharing
        self._events = events
        self.refused: list[Refused] = []
        self.bound: dict[str, tuple[Start, Grant | None]] = {}
        """Starts that were carried out, by the pod's UID."""
        self.evicted: set[str] = set()
        self.told: dict[str, str] = {}
        """Why pods wait, as they were told, by UID."""
        self.changed_jobs: list[Object] = []
        """Jobs that we changed, as they are since."""
        self.freed: set[str] = set()
        """UIDs of those that are to make their pods now."""
        self.paused: set[str] = set()
        """UIDs of those that are to have no pods now."""
        self.kept: list[Kept] = []
        """Pods that disruption budgets do not let us evict."""
        self.doubtful: dict[str, Pod] = {}
        """Pods of which nobody knows whether what we asked was done, by UID."""

    async def start(
        self, decision: Start, pod: Pod, grant: Grant | None, notes: Mapping[str, str]
    ) -> None:
        """Bind a pod to the node that the plan gives it, and to its parts of devices.

        What the pod is to know of that, `notes`, it is told by the same request.
        """
        try:
            await self._api.create(pod_path(pod, "binding"), binding(pod, decision.node, notes))
        except ApiError as error:
            self._refuse(decision, pod, error)
            return
        self.bound[pod.uid] = decision, grant
        self._events.tell(pod, "Scheduled", f"Runs on {decision.node}.")
        if pod.remark:
            self._events.tell(pod, "NotElastic", pod.remark)

    async def reserve(self, decision: Start, name: str, slot: Slot) -> None:
        """Have a device kept for those who are to share it."""
        try:
            await self._sharing.reserve(name, slot)
        except ApiError as error:
            # Whatever became of it: made again, it is the same one.
            self.refused.append(Refused(decision.workload, decision.worker, error.message))

    async def provide(self, decision: Start, claim: Claim, volume: Volume | None) -> None:
        """Have a claim bound on the node that was chosen: to a volume there, or to one made."""
        try:
            if volume is None:
                await self._api.patch(claim.path, selected(claim, decision.node))
            else:
                await self._api.patch(f"{VOLUMES}/{volume.name}", taken_by(volume, claim))
        except ApiError as error:
            # Whatever became of it, the watch shows; somebody else may have been first.
            self.refused.append(Refused(decision.workload, decision.worker, error.message))

    async def stop(self, decision: Stop | Move, pod: Pod) -> None:
        """Evict a pod, which its Job makes again at once: that is no failure of it.

        Why, it is told beside that, before all other news: while it ends it can be read.
        """
        path = pod_path(pod, "eviction")
        try:
            version = await self._leave_out(pod) if pod.counting else ""
            # A disruption budget that is used up answers like a throttled server.
            await self._api.create(path, eviction(pod, version), retry=False)
        except ApiError as error:
            if error.is_by_budget:
                self.kept.append(Kept(pod, decision.reason.for_ or "", error.message))
            if error.status != 404:
                self._refuse(decision, pod, error)
            return
        self.evicted.add(pod.uid)
        self._events.tell(pod, "Preempted", why(decision.reason), leaves=True)

    async def _leave_out(self, pod: Pod) -> str:
        """Have a pod's end not counted; return the version of it whose end is not.

        If it is any other by the time of its eviction, it may have ended well: then it stays, and
        is counted again at the next look.
        """
        change = left_out(pod.uid)
        found = await self._api.patch(pod_path(pod, "status"), change, strategic=True)
        if read_pod(found).is_finished:
            raise ApiError(HTTPStatus.CONFLICT, "Conflict", f"{pod.key} has ended")
        version: str = found["metadata"]["resourceVersion"]
        return version

    async def hold(self, decision: Stop | Move, group: Group, now: float) -> None:
        """Pause a whole Job: it loses its pods and keeps its place.

        The reason stands on the Job; its pods are told beside that, however many they are.
        """
        assert group.job is not None
        sentence = why(decision.reason)
        up = [pod for pod in group.pods if pod.node and pod.deleted is None]
        change = held(group.job, now=now, why=sentence, priority=group.first.priority)
        if await self._change(decision, group.job, change):
            for pod in up:
                self._events.tell(pod, "Preempted", sentence, leaves=True)
            self.evicted.update(pod.uid for pod in up)
            self.paused.add(group.job.uid)

    async def resize(self, decision: Resize, group: Group) -> None:
        """Stop a Job's only pod so that it starts again elsewhere on its node: that is no pause."""
        assert group.job is not None
        sentence = why(decision.reason)
        change = resizing(group.job, why=sentence, priority=group.first.priority)
        if await self._change(decision, group.job, change):
            up = [pod for pod in group.pods if pod.node and pod.deleted is None]
            for pod in up:
                self._events.tell(pod, "Resized", sentence, leaves=True)
            self.evicted.update(pod.uid for pod in up)

    async def let_go(self, decision: Start, group: Group, now: float) -> None:
        """Let a Job that was held make its pods; each is bound when it is there."""
        assert group.job is not None
        if await self._change(decision, group.job, let_go(group.job, now=now)):
            self.freed.add(group.job.uid)

    async def _change(
        self, decision: Start | Stop | Move | Resize, job: Job, change: Steps
    ) -> bool:
        try:
            found = await self._api.change(job.path, change)
        except ApiError as error:
            # Whatever became of it, the watch shows; the change tests what it changes.
            self.refused.append(Refused(decision.workload, decision.worker, error.message))
            return False
        self.changed_jobs.append(found)
        return True

    async def wait(self, decision: Wait, pod: Pod, node: str, sentence: str) -> None:
        """Say why a pod waits, and the `node` on which its place is kept, if one is."""
        await self._say(pod, decision.reason.code, sentence, node)

    async def promise(self, pod: Pod, node: str, sentence: str) -> None:
        """Say that devices are held for a pod; the Event comes later, for others may be waiting.

        The node stands where kube-scheduler and autoscalers put it, too.
        """
        if pod.sentence != sentence:
            telling = show_waiting(self._api, pod, "stopping", sentence, node)
            if not await self._tell(telling):
                return
            self.told[pod.uid] = sentence
            self._events.tell(pod, "Waiting", sentence)

    async def refuse(self, pod: Pod, sentence: str) -> None:
        """Say why a pod will never start as it is."""
        await self._say(pod, "not_supported", sentence)

    async def held_back(self, job: Job, sentence: str) -> None:
        """Say why a Job that is held waits, where its own `kubectl describe` shows it.

        The Event comes when that is written: told before, it would be told at each try.
        """
        if job.template.sentence == sentence:
            return
        try:
            found = await self._api.change(job.path, told(job, sentence))
        except ApiError as error:
            if error.status not in (404, 422):  # gone, or not held any more
                self.refused.append(Refused("", "", f"could not be told: {error.message}"))
            return
        self.changed_jobs.append(found)
        self._events.tell(job, "Waiting", sentence)

    async def _say(self, pod: Pod, code: str, sentence: str, node: str = "") -> None:
        if pod.sentence != sentence:
            telling = tell_waiting(self._api, pod, code, sentence, node)
            if await self._tell(telling):
                self.told[pod.uid] = sentence

    async def _tell(self, telling: Awaitable[None]) -> bool:
        """Tell; return whether that is done with: what is refused for good is not tried again."""
        try:
            await telling
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                self.refused.append(Refused("", "", f"could not be told: {error.message}"))
            return error.is_for_good
        return True

    def _refuse(self, decision: Start | Stop | Move | Resize, pod: Pod, error: ApiError) -> None:
        if error.is_unanswered:
            self.doubtful[pod.uid] = pod
        self.refused.append(Refused(decision.workload, decision.worker, error.message))


def promised(decision: Reserve) -> str:
    """Say that devices are held for a worker until those it waits for have left them."""
    leaving = ", ".join(decision.waits_for)
    return f"its place on {decision.node} is kept until {leaving} left it (R7)"


async def at_once(calls: Iterable[Call]) -> None:
    """Make calls, the first ones first, a bounded number at a time."""
    left = iter(calls)

    async def one_after_another() -> None:
        for call in left:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLS_AT_ONCE):
            group.create_task(one_after_another())
