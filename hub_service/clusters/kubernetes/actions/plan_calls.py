"""Translation of a plan's decisions to ordered API calls, each at most once.

A Job that stops whole is suspended; single pods of a Job are evicted; workers without pods get only
nominated devices.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from runai.hub_service.clusters.kubernetes.actions.decision_executor import (
    ApiCall,
    DecisionExecutor,
    promised,
)
from runai.hub_service.clusters.kubernetes.actions.device_choice import DeviceChoice
from runai.hub_service.clusters.kubernetes.events.pod_conditions import reason_sentence
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import (
    DeviceReservation,
    Slot,
)
from runai.hub_service.clusters.kubernetes.objects.array_elements import ArrayJob
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import (
    RESUMED,
    BoundDevices,
    memory_annotations,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import Demands, obstacle
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup
from runai.hub_service.clusters.kubernetes.objects.volume_binding import Claim, Storage
from runai.hub_service.clusters.kubernetes.snapshot.device_bookings import DeviceBookings
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import (
    overcommitted_workers,
    too_few_for_all,
)
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import NominatedPlacement
from runai.hub_service.model.cluster import Refused
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    Move,
    Plan,
    Reserve,
    Resize,
    Start,
    Stop,
    Unreserve,
    Wait,
)

_StopOrMove = Stop | Move


class PlanCalls:
    """The API calls of one plan."""

    def __init__(
        self,
        groups: Mapping[str, PodGroup],
        nominations: dict[str, NominatedPlacement],
        executor: DecisionExecutor,
        *,
        absent: Callable[[str, str], str],
        bookings: DeviceBookings,
        reservations: Mapping[Slot, DeviceReservation],
        storage: Storage,
        nodes: Mapping[str, KubeNode],
        explain_protection: Callable[[str], str],
        trouble: str,
        now: float,
    ) -> None:
        """Begin with the workloads that the plan was made for; `nominations` is updated in place.

        `absent` returns why a workload has no such worker, `bookings` tracks free devices,
        `reservations` are of shared devices, `nodes` by name. `explain_protection` returns
        which victim of a workload is protected from eviction. `trouble` is why no device can be
        reserved for sharing, or "".
        """
        self._absent = absent
        self._groups = groups
        self._nominations = nominations
        self._executor = executor
        self._now = now
        self._bookings = bookings
        self._device_choice = DeviceChoice(reservations, executor)
        self._unsuspended: set[str] = set()
        self._workers_in_place: set[str] = set()
        """Workers that already have the devices that the plan gives them."""
        self._storage = storage
        self._nodes = nodes
        self._obstacles: dict[Demands, str] = {}
        self._explain_protection = explain_protection
        self._sharing_trouble = trouble
        self._overcommitted: Mapping[str, str] = {}
        """Why workers' nodes lack extended resources for them, which the core does not count."""
        self._assigned_volumes: set[str] = set()
        """Volumes already assigned to claims."""
        self.pods = {pod.called: pod for group in groups.values() for pod in group.pods}
        """Workers by their names in the plan."""

    def build(self, plan: Plan) -> list[ApiCall]:
        """Return the calls in the order in which to run them."""
        calls: list[ApiCall] = []
        pauses = self._jobs_to_suspend(plan)
        starting = Counter(d.workload for d in plan.decisions if isinstance(d, Start))
        self._overcommitted = self._overcommitted_workers(plan)
        possible: list[Decision] = []
        for decision in plan.decisions:
            is_pause = isinstance(decision, _StopOrMove) and decision.workload in pauses
            if not isinstance(decision, Wait) and not is_pause:
                if refusal := self._book_or_refuse(decision, starting):
                    refused = Refused(decision.workload, decision.worker, refusal)
                    self._executor.refused.append(refused)
                    continue
                pod = self.pods[decision.worker]
                if isinstance(decision, Start) and pod.is_made and not pod.node:
                    self._device_choice.choose(decision, pod)
                    if self._storage.waiting(pod):
                        self._device_choice.unready.add(decision.workload)
            possible.append(decision)
        for decision in possible:
            if isinstance(decision, Wait):
                calls += self._wait(decision)
            elif isinstance(decision, _StopOrMove) and decision.workload in pauses:
                if pauses[decision.workload] is decision:
                    group = self._groups[decision.workload]
                    calls.append(partial(self._executor.suspend_job, decision, group, self._now))
            else:
                calls += self._worker_calls(decision, self.pods[decision.worker])
        calls += self._array_calls(possible)
        for group in self._groups.values():
            if group.refusal:
                calls += self._refuse(group)
        return calls

    def _book_or_refuse(self, decision: Decision, starting: Mapping[str, int]) -> str:
        """Book the devices of a decision and return ""; else return why it is not possible."""
        assert not isinstance(decision, Wait)
        pod = self.pods.get(decision.worker)
        if isinstance(decision, Resize):
            return self._book_resize(decision, pod)
        if pod is None:
            return self._absent(decision.workload, decision.worker)
        if isinstance(decision, Start) and not pod.node:
            return self._book_start(decision, pod, starting[decision.workload])
        if isinstance(decision, Reserve):
            return self._bookings.missing_device(
                decision.node, (share.device for share in decision.devices)
            )
        return ""

    def _book_start(self, decision: Start, pod: Pod, starting: int) -> str:
        """Book devices for one of `starting` workers; return "" or why it cannot start."""
        group = self._groups[decision.workload]
        if sum(bool(p.node) for p in group.pods) + starting < group.minimum:
            requirement = f"{decision.workload} needs {group.minimum} workers at once"
            return f"{requirement}, the plan starts {starting}"
        if decision.worker in self._overcommitted:
            return self._overcommitted[decision.worker]
        return self._bookings.try_book(pod, decision.node, decision.devices)

    def _overcommitted_workers(self, plan: Plan) -> Mapping[str, str]:
        """Return the workers for which an extended resource of their node runs out, and why."""
        starts = [
            (decision, pod)
            for decision in plan.decisions
            if isinstance(decision, Start)
            and (pod := self.pods.get(decision.worker)) is not None
            and not pod.node
        ]

        def is_enough(workload: str, count: int) -> bool:
            group = self._groups[workload]
            return count + sum(bool(pod.node) for pod in group.pods) >= group.minimum

        return overcommitted_workers(starts, self._nodes, is_enough)

    def _book_resize(self, decision: Resize, pod: Pod | None) -> str:
        """Book devices for a worker's restart and return ""; else return why it cannot restart."""
        if pod is None or not self._groups[decision.workload].is_resizable:
            return f"{decision.worker} cannot be resized"
        nomination = self._nominations.get(pod.place)
        if not pod.node or (pod.deleted is not None and nomination is None):
            return f"{decision.worker} does not run"
        if decision.node != pod.node:
            return f"{decision.worker} runs on {pod.node}, not on {decision.node}"
        current = self._bookings.devices_of(pod) if nomination is None else set(nomination.devices)
        if current == {share.device for share in decision.devices}:
            self._workers_in_place.add(decision.worker)
            return ""
        return self._bookings.try_book(pod, decision.node, decision.devices)

    def _resize(self, decision: Resize, pod: Pod) -> list[ApiCall]:
        """Restart a worker on other devices of its node; the latest decision counts."""
        self._nominate(pod, decision)
        group = self._groups[decision.workload]
        call = partial(self._executor.resize, decision, group, self._now)
        return [call] if pod.deleted is None else []

    def _worker_calls(self, decision: Decision, pod: Pod) -> list[ApiCall]:
        """Return the calls for one worker, none if nothing is left to do."""
        match decision:
            case Start() if not pod.is_made:
                self._nominate(pod, decision)
                return self._unsuspend_job(decision)
            case Start() if not pod.node:
                return self._start(decision, pod)
            case Resize() if decision.worker not in self._workers_in_place:
                return self._resize(decision, pod)
            case Stop() | Move() if pod.node and pod.deleted is None:
                # Elements of an array are paused together (`_array_calls`).
                group = self._groups[decision.workload]
                is_single = group.array is None
                return [partial(self._executor.stop, decision, pod, group.job)] if is_single else []
            case Reserve() if not pod.node:
                return self._reserve(decision, pod)
            case Unreserve():
                self._nominations.pop(pod.place, None)
        return []

    def _array_calls(self, decisions: Iterable[Decision]) -> list[ApiCall]:
        """Return the calls about elements of arrays: one for all elements of an array."""
        stops: dict[str, list[tuple[Stop | Move, Pod]]] = defaultdict(list)
        starts: dict[str, tuple[int, Start]] = {}
        waits: dict[str, Wait] = {}
        arrays: dict[str, ArrayJob] = {}
        for decision in decisions:
            group = self._groups.get(decision.workload)
            if group is None or group.array is None:
                continue
            uid, pod = group.array.job.uid, group.first
            arrays[uid] = group.array
            match decision:
                case Stop() | Move() if pod.node and pod.deleted is None:
                    stops[uid].append((decision, pod))
                case Start() if group.needs > starts.get(uid, (0,))[0]:
                    starts[uid] = group.needs, decision
                case Wait():
                    waits.setdefault(uid, decision)
        calls: list[ApiCall] = []
        for uid, array in arrays.items():
            needs, start = starts.get(uid, (0, None))
            is_promised = any(place.startswith(f"{uid}/") for place in self._nominations)
            if start is not None and (needs > array.job.parallelism or array.job.is_queued):
                calls.append(partial(self._executor.start_elements, start, array, needs, self._now))
            elif start is None and uid in waits and not is_promised:
                if surplus := array.surplus(self._now):
                    calls.append(partial(self._executor.drop_surplus, waits[uid], array, surplus))
                calls += self._report_array_wait(array.job, waits[uid])
            if uid in stops:
                calls.append(partial(self._executor.pause_elements, array, stops[uid], self._now))
        return calls

    def _report_array_wait(self, job: Job, wait: Wait) -> list[ApiCall]:
        """Write on an array's Job why its next element waits, before any of them has pods."""
        sentence = reason_sentence(wait.reason)
        report = partial(self._executor.report_why_suspended, job, sentence)
        return [report] if job.is_queued else []

    def _reserve(self, decision: Reserve, pod: Pod) -> list[ApiCall]:
        """Nominate a node for a worker, and write what its place waits for."""
        self._nominate(pod, decision)
        if pod.is_made:
            return [partial(self._executor.promise, pod, decision.node, promised(decision))]
        return self._report_wait(self._groups[decision.workload], promised(decision))

    def _start(self, decision: Start, pod: Pod) -> list[ApiCall]:
        """Bind a pod, or keep its nominated node until its devices are ready."""
        if decision.workload not in self._device_choice.unready:
            grant = self._device_choice.grants.get(decision.worker)
            notes = self._notes(decision, pod, grant)
            return [partial(self._executor.start, decision, pod, grant, notes)]
        self._nominate(pod, decision)
        claims = self._storage.waiting(pod)
        what = f"volume {claims[0].name} is" if claims else "devices there are"
        sentence = f"its place on {decision.node} is kept until its {what} ready"
        sentence += "" if claims else self._reservation_trouble(pod)
        say = partial(self._executor.promise, pod, decision.node, sentence)
        provided = self._provide(decision, claims)
        return [*provided, *self._device_choice.calls.get(decision.worker, ()), say]

    def _notes(self, decision: Start, pod: Pod, grant: BoundDevices | None) -> dict[str, str]:
        """Return the annotations of a binding: devices, memory, and whether the Job is resumed."""
        notes = {RESUMED: "1"} if self._groups[decision.workload].is_resumed else {}
        if grant is None or pod.device_request is None:
            return notes
        device_mib = self._bookings.device_mib(decision.node)
        memory = memory_annotations(pod.device_request, grant.milli, device_mib)
        return notes | grant.annotations | memory

    def _provide(self, decision: Start, claims: Iterable[Claim]) -> list[ApiCall]:
        """Return the calls that bind the claims that waited for the node."""
        calls: list[ApiCall] = []
        for claim in claims:
            owned = any(v.claim == claim.uid for v in self._storage.volumes.values())
            if claim.node or owned:
                continue  # requested already
            node = self._nodes.get(decision.node)
            labels = {} if node is None else node.labels
            volume = self._storage.choose(claim, decision.node, labels, self._assigned_volumes)
            if volume is not None:
                self._assigned_volumes.add(volume.name)
            calls.append(partial(self._executor.provide, decision, claim, volume))
        return calls

    def _unsuspend_job(self, decision: Start) -> list[ApiCall]:
        """Unsuspend a Job once: all workers of a gang start together."""
        group = self._groups[decision.workload]
        if group.job is None or not group.job.is_queued or decision.workload in self._unsuspended:
            return []
        self._unsuspended.add(decision.workload)
        return [partial(self._executor.unsuspend_job, decision, group, self._now)]

    def _wait(self, wait: Wait) -> list[ApiCall]:
        """Return the calls that write why a workload waits, where something else is written."""
        group = self._groups.get(wait.workload)
        if group is None:
            return []
        sentence = reason_sentence(wait.reason) + self._explain_protection(wait.workload)
        if wait.reason.code == "no_such_node":
            sentence += self._obstacle_counts(group.first.demands) or too_few_for_all(group.pods)
        sentence += self._reservation_trouble(group.first)
        # Of 30,000 waiting pods nearly all already show this reason.
        pods = [p for p in group.pods if p.is_made and not p.node and p.sentence != sentence]
        return [
            *(partial(self._write_reason, wait, pod, sentence) for pod in pods),
            *self._report_wait(group, sentence),
        ]

    async def _write_reason(self, wait: Wait, pod: Pod, sentence: str) -> None:
        """Write why a pod waits, and its nominated node by the end of the plan."""
        nomination = self._nominations.get(pod.place)
        node = "" if nomination is None else nomination.node
        await self._executor.wait(wait, pod, node, sentence)

    def _reservation_trouble(self, pod: Pod) -> str:
        """Return why no GPU can be reserved, for a pod that wants a share; else ""."""
        concerns_pod = self._sharing_trouble and pod.device_request is not None
        return (
            f"; no GPU can be reserved for parts: {self._sharing_trouble}" if concerns_pod else ""
        )

    def _obstacle_counts(self, demands: Demands) -> str:
        """Return how many nodes do not satisfy these demands, by obstacle."""
        if demands not in self._obstacles:
            nodes_by_obstacle = Counter(
                obstacle(demands, node.name, node.labels, node.taints, node.stock)
                for node in self._nodes.values()
            )
            counts = [
                f"{n} node{' has' if n == 1 else 's have'} {what}"
                for what, n in nodes_by_obstacle.items()
                if what
            ]
            self._obstacles[demands] = f": {', '.join(sorted(counts))}" if counts else ""
        return self._obstacles[demands]

    def _refuse(self, group: PodGroup) -> list[ApiCall]:
        """Return the calls that write why a workload can never run as it is."""
        pods = [pod for pod in group.pods if pod.is_made and not pod.node]
        return [
            *(partial(self._executor.refuse, pod, group.refusal) for pod in pods),
            *self._report_wait(group, group.refusal),
        ]

    def _report_wait(self, group: PodGroup, sentence: str) -> list[ApiCall]:
        """Return the call that writes a reason on a suspended Job that lacks pods."""
        if group.job is None or not group.job.is_queued or not group.unmade:
            return []
        return [partial(self._executor.report_why_suspended, group.job, sentence)]

    def _nominate(self, pod: Pod, decision: Start | Reserve | Resize) -> None:
        self._nominations[pod.place] = NominatedPlacement(
            decision.node,
            tuple(share.device for share in decision.devices),
            gpus=min((share.gpus for share in decision.devices), default=WHOLE_GPU),
            is_shared=pod.device_request is not None,
        )

    def _jobs_to_suspend(self, plan: Plan) -> dict[str, _StopOrMove]:
        """Return the workloads to suspend, each with the first decision to stop it.

        A workload qualifies if all of its workers stop and its Job may be suspended.
        """
        stops: dict[str, list[_StopOrMove]] = {}
        for decision in plan.decisions:
            if isinstance(decision, _StopOrMove) and decision.workload in self._groups:
                stops.setdefault(decision.workload, []).append(decision)
        pauses = {}
        for workload, decisions in stops.items():
            group = self._groups[workload]
            # A pod about to restart on other devices counts as running: suspension keeps it away.
            running = {
                pod.called
                for pod in group.pods
                if pod.node and (pod.deleted is None or pod.place in self._nominations)
            }
            all_stop = bool(running) and running <= {decision.worker for decision in decisions}
            if all_stop and group.job is not None and group.job.may_be_suspended:
                pauses[workload] = decisions[0]
        return pauses
