"""Nodes whose kubelets would not take what was bound there: they are left alone for a while.

Whoever binds a pod races with everybody else who does, and with devices that break: the kubelet has
the last word (`OutOfnvidia.com/gpu`, `UnexpectedAdmissionError`), and its pod has failed before
anything of it ran. The API server knows what became of the devices a moment later. May be forgotten
at any time. Owned by `scheduling`; `sharing` notes what became of reservations.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job

CLOSED_S, LONGEST_CLOSED_S = 5.0, 300.0
"""How long a node's devices are left alone."""
IS_NEWS_S = 300.0
"""So long after its binding, or its making, a pod that was turned away is news."""
_WORDS = frozenset(
    {
        "InvalidNodeInfo",
        "NodeAffinity",
        "NodePorts",
        "TaintToleration",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)


@dataclass(slots=True)
class _Refused:
    """How often a node refused, one time after the other."""

    times: int = 0
    until: float = 0.0


class Refusals:
    """How long which nodes are left alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none; the clock says Unix seconds."""
        self._clock = clock
        self._nodes: dict[str, _Refused] = {}

    def note(self, node: str) -> None:
        """Leave a node alone: twice as long as the last time."""
        refused = self._nodes.setdefault(node, _Refused())
        refused.until = self._clock() + min(CLOSED_S * 2**refused.times, LONGEST_CLOSED_S)
        refused.times = min(refused.times + 1, 16)

    def trust(self, node: str, since: float) -> None:
        """Forget what a node refused, since it has taken something that was bound at `since`."""
        if node in self._nodes and since > self._nodes[node].until:
            del self._nodes[node]

    def closed(self) -> set[str]:
        """Return the nodes that are left alone now."""
        now = self._clock()
        return {node for node, refused in self._nodes.items() if refused.until > now}

    def keep(self, nodes: Collection[str]) -> None:
        """Forget nodes that are gone."""
        self._nodes = {node: refused for node, refused in self._nodes.items() if node in nodes}


def turned_away(pod: Pod) -> str:
    """Say that its kubelet would not take a pod, and why; "" where nothing of the kind happened.

    A pod that ran has an exit code.
    """
    word = pod.why.partition(":")[0]
    if not pod.is_finished or pod.exit_code is not None:
        return ""
    if word not in _WORDS and not word.startswith("OutOf"):
        return ""
    again = (
        f"its {pod.owner.kind} makes it again"
        if pod.owner is not None
        else "nobody makes it again: start it anew"
    )
    return f"{pod.node} would not take it ({pod.why.rstrip('. ')}); {again}"


class TurnedAway:
    """The pods of this scheduler that kubelets turned away, each told once."""

    def __init__(self, events: EventQueue, refusals: Refusals, clock: Callable[[], float]) -> None:
        """Begin with nobody told."""
        self._events = events
        self._refusals = refusals
        self._clock = clock
        self._told: set[str] = set()

    def look(self, pods: Iterable[Pod], jobs: Mapping[str, Job], nodes: Collection[str]) -> bool:
        """Leave the nodes of those alone that were turned away since the last look; say why.

        Reservations are `sharing`'s. Tell whether nodes are left alone now.
        """
        told: set[str] = set()
        for pod in pods:
            if pod.scheduler != SCHEDULER or pod.is_reservation or not pod.node:
                continue
            if not pod.is_finished:
                if pod.is_up:
                    self._refusals.trust(pod.node, pod.bound or 0)
            elif sentence := turned_away(pod):
                told.add(pod.uid)
                is_news = self._clock() <= (pod.bound or pod.created) + IS_NEWS_S
                if is_news and pod.uid not in self._told:
                    self._note(pod, sentence, jobs)
        self._told = told
        self._refusals.keep(nodes)
        return bool(self._refusals.closed())

    def _note(self, pod: Pod, sentence: str, jobs: Mapping[str, Job]) -> None:
        self._refusals.note(pod.node)
        self._events.tell(pod, "TurnedAway", sentence, bad=True)
        if pod.owner is not None and (job := jobs.get(pod.owner.uid)) is not None:
            self._events.tell(job, "TurnedAway", f"{pod.name}: {sentence}", bad=True)
