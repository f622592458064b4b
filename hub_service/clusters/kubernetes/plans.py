"""From a plan's decisions to calls of the API: which ones, in which order, none twice.

Knows that a Job that stops whole is held, that only single pods of it are evicted, and that workers
without pods are only promised their devices. Makes no call itself: they are `acting`'s. Made by
`cluster` for each plan.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from runai.hub_service.clusters.base import Refused
from runai.hub_service.clusters.kubernetes.acting import Acting, Call, promised
from runai.hub_service.clusters.kubernetes.finding import DeviceFinding
from runai.hub_service.clusters.kubernetes.grouping import Group
from runai.hub_service.clusters.kubernetes.objects import Pod
from runai.hub_service.clusters.kubernetes.picture import Promise
from runai.hub_service.clusters.kubernetes.reservations import Guard, Slot
from runai.hub_service.clusters.kubernetes.telling import why
from runai.hub_service.scheduler.model import (
    Decision,
    DeviceShare,
    Move,
    Plan,
    Reserve,
    Resize,
    Start,
    Stop,
    Unreserve,
    Wait,
)
from runai.hub_service.scheduler.quantity import WHOLE_GPU, memory_of_fraction

__all__ = ["PlanCalls", "Room"]

_Halt = Stop | Move | Resize


class Room:
    """How much of which devices of which nodes is whose, by the places of workers."""

    def __init__(self, nodes: Mapping[str, int], memory_mib: Mapping[str, int]) -> None:
        """Begin with nodes, how many devices each has, and of which size; all are free."""
        self._nodes = nodes
        self._memory_mib = memory_mib
        self._held: dict[Slot, dict[str, tuple[int, int]]] = defaultdict(dict)
        """By place: milli-GPU, and MiB where it was memory that was asked for."""

    def hold(self, pod: Pod, node: str, devices: Iterable[DeviceShare]) -> None:
        """Note whose devices are, or parts of them."""
        for share in devices:
            mib = 0 if pod.part is None else pod.part.mib
            self._held[node, share.device][pod.place] = (share.gpus, mib)

    def take(self, pod: Pod, node: str, devices: Sequence[DeviceShare]) -> str:
        """Note whose devices are to be; or say why they cannot be."""
        if lacks := self.lacks(node, (share.device for share in devices)):
            return lacks
        mib = 0 if pod.part is None else pod.part.mib
        for share in devices:
            others = [h for p, h in self._held[node, share.device].items() if p != pod.place]
            if not self._fit([*others, (share.gpus, mib)], self._memory_mib.get(node, 0)):
                return f"device {share.device} of {node} has no room for it"
        self.hold(pod, node, devices)
        return ""

    @staticmethod
    def _fit(parts: Sequence[tuple[int, int]], device_mib: int) -> bool:
        """Tell whether parts fit on one device (P3)."""
        if not any(mib for _milli, mib in parts):
            return sum(milli for milli, _mib in parts) <= WHOLE_GPU
        booked = (mib or memory_of_fraction(milli, device_mib) for milli, mib in parts)
        return sum(booked) <= device_mib

    def lacks(self, node: str, devices: Iterable[int]) -> str:
        """Say what is not there at all, or nothing."""
        if node not in self._nodes:
            return f"there is no node {node}"
        missing = [device for device in devices if device >= self._nodes[node]]
        return f"node {node} has no device {missing[0]}" if missing else ""


class PlanCalls:
    """The calls of one plan."""

    def __init__(
        self,
        groups: Mapping[str, Group],
        promises: dict[str, Promise],
        acting: Acting,
        *,
        absent: Callable[[str, str], str],
        room: Room,
        guards: Mapping[Slot, Guard],
        now: float,
    ) -> None:
        """Begin with the workloads that the plan was made for; `promises` are kept up to date.

        `absent` says why a worker of a workload is not there, `room` which devices are free,
        `guards` what keeps those that are shared.
        """
        self._absent = absent
        self._groups = groups
        self._promises = promises
        self._acting = acting
        self._now = now
        self._room = room
        self._finding = DeviceFinding(guards, acting)
        self.pods = {pod.called: pod for group in groups.values() for pod in group.pods}
        """Workers by the names that the plan calls them by."""

    def of(self, plan: Plan) -> list[Call]:
        """Return what is to be called, the first ones first."""
        calls: list[Call] = []
        pauses = self._pauses(plan)
        starting = Counter(d.workload for d in plan.decisions if isinstance(d, Start))
        possible: list[Decision] = []
        for decision in plan.decisions:
            is_pause = isinstance(decision, _Halt) and decision.workload in pauses
            if not isinstance(decision, Wait) and not is_pause:
                if refusal := self._refusal(decision, starting):
                    refused = Refused(decision.workload, decision.worker, refusal)
                    self._acting.refused.append(refused)
                    continue
                pod = self.pods[decision.worker]
                if isinstance(decision, Start) and pod.is_made and not pod.node:
                    self._finding.find(decision, pod)
            possible.append(decision)
        for decision in possible:
            if isinstance(decision, Wait):
                calls += self._wait(decision)
            elif isinstance(decision, _Halt) and decision.workload in pauses:
                if pauses[decision.workload] is decision:
                    group = self._groups[decision.workload]
                    calls.append(partial(self._acting.hold, decision, group, self._now))
            else:
                calls += self._of_worker(decision, self.pods[decision.worker])
        for group in self._groups.values():
            if group.refusal:
                calls += self._refuse(group)
        return calls

    def _refusal(self, decision: Decision, starting: Mapping[str, int]) -> str:
        """Say why the world does not allow a decision, or nothing; take its room where it does."""
        assert not isinstance(decision, Wait)
        pod = self.pods.get(decision.worker)
        if pod is None:
            return self._absent(decision.workload, decision.worker)
        if isinstance(decision, Start) and not pod.node:
            group = self._groups[decision.workload]
            up, coming = sum(bool(p.node) for p in group.pods), starting[decision.workload]
            if up + coming < group.minimum:
                least = f"{decision.workload} needs {group.minimum} workers at once"
                return f"{least}, the plan starts {coming}"
            return self._room.take(pod, decision.node, decision.devices)
        if isinstance(decision, Reserve):
            return self._room.lacks(decision.node, (share.device for share in decision.devices))
        return ""

    def _of_worker(self, decision: Decision, pod: Pod) -> list[Call]:
        match decision:
            case Start() if not pod.is_made:
                self._promise(pod, decision)
                return self._let_go(decision, pod)
            case Start() if not pod.node:
                return self._start(decision, pod)
            case Stop() | Move() | Resize() if pod.node and pod.deleted is None:
                return [partial(self._acting.stop, decision, pod)]
            case Reserve() if not pod.node:
                self._promise(pod, decision)
                if pod.is_made:
                    return [partial(self._acting.promise, pod, promised(decision))]
                return self._held_back(self._groups[decision.workload], promised(decision))
            case Unreserve():
                self._promises.pop(pod.place, None)
        return []

    def _start(self, decision: Start, pod: Pod) -> list[Call]:
        """Bind a pod, or keep its place until its devices are ready."""
        if decision.workload not in self._finding.unready:
            grant = self._finding.grants.get(decision.worker)
            return [partial(self._acting.start, decision, pod, grant)]
        self._promise(pod, decision)
        sentence = f"its place on {decision.node} is kept until its devices there are ready"
        say = partial(self._acting.promise, pod, sentence)
        return [*self._finding.calls.get(decision.worker, ()), say]

    def _let_go(self, decision: Start, pod: Pod) -> list[Call]:
        """Let a Job go once: all of a gang's workers start together."""
        group = self._groups[decision.workload]
        if group.job is None or not group.job.is_held or pod is not group.unmade[0]:
            return []
        return [partial(self._acting.let_go, decision, group, self._now)]

    def _wait(self, wait: Wait) -> list[Call]:
        group = self._groups.get(wait.workload)
        if group is None:
            return []
        pods = [pod for pod in group.pods if pod.is_made and not pod.node]
        return [
            *(partial(self._acting.wait, wait, pod) for pod in pods),
            *self._held_back(group, why(wait.reason)),
        ]

    def _refuse(self, group: Group) -> list[Call]:
        pods = [pod for pod in group.pods if pod.is_made and not pod.node]
        return [
            *(partial(self._acting.refuse, pod, group.refusal) for pod in pods),
            *self._held_back(group, group.refusal),
        ]

    def _held_back(self, group: Group, sentence: str) -> list[Call]:
        if group.job is None or not group.job.is_held or not group.unmade:
            return []
        return [partial(self._acting.held_back, group.job, sentence)]

    def _promise(self, pod: Pod, decision: Start | Reserve) -> None:
        self._promises[pod.place] = Promise(
            decision.node,
            tuple(share.device for share in decision.devices),
            gpus=min((share.gpus for share in decision.devices), default=WHOLE_GPU),
            is_part=pod.part is not None,
        )

    def _pauses(self, plan: Plan) -> dict[str, _Halt]:
        """Return the workloads that stop whole and can be held, each with its first decision."""
        halts: dict[str, list[_Halt]] = {}
        for decision in plan.decisions:
            if isinstance(decision, Stop | Move | Resize) and decision.workload in self._groups:
                halts.setdefault(decision.workload, []).append(decision)
        pauses = {}
        for workload, decisions in halts.items():
            group = self._groups[workload]
            up = {pod.called for pod in group.pods if pod.node and pod.deleted is None}
            is_all = bool(up) and up <= {decision.worker for decision in decisions}
            if is_all and group.job is not None and group.job.may_be_held:
                pauses[workload] = decisions[0]
        return pauses
