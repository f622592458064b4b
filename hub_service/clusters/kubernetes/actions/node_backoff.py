"""Backoff for nodes on which kubelets rejected bound pods.

Binding races with other schedulers and with failing devices. The kubelet decides
(`OutOfnvidia.com/gpu`, `UnexpectedAdmissionError`); a rejected pod fails before any container runs.
The API server shows the device counts a moment later. The state may be lost at any time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job

CLOSED_S, LONGEST_CLOSED_S = 5.0, 300.0
"""Backoff of a node in seconds: first and maximum."""
IS_NEWS_S = 300.0
"""Rejections are reported up to this long after the pod was bound or created."""
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
class _Backoff:
    """Backoff of one node: number of consecutive rejections, and its end."""

    times: int = 0
    until: float = 0.0


class NodeBackoff:
    """Exponential backoff per node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin without backoff; `clock` returns Unix seconds."""
        self._clock = clock
        self._nodes: dict[str, _Backoff] = {}

    def record_rejection(self, node: str) -> None:
        """Back off from a node: 5 s, doubled each time up to 5 min."""
        refused = self._nodes.setdefault(node, _Backoff())
        refused.until = self._clock() + min(CLOSED_S * 2**refused.times, LONGEST_CLOSED_S)
        refused.times = min(refused.times + 1, 16)

    def record_success(self, node: str, since: float) -> None:
        """End a node's backoff if it accepted a pod that was bound after the backoff."""
        if node in self._nodes and since > self._nodes[node].until:
            del self._nodes[node]

    def in_backoff(self) -> set[str]:
        """Return the nodes in backoff."""
        now = self._clock()
        return {node for node, refused in self._nodes.items() if refused.until > now}

    def retain(self, nodes: Collection[str]) -> None:
        """Drop nodes that are gone."""
        self._nodes = {node: refused for node, refused in self._nodes.items() if node in nodes}


def rejection_of(pod: Pod) -> str:
    """Return why a kubelet rejected a pod; "" if it did not.

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


class RejectedPods:
    """Pods of this scheduler that kubelets rejected; each is reported once."""

    def __init__(
        self, events: EventQueue, backoff: NodeBackoff, clock: Callable[[], float]
    ) -> None:
        """Begin with no rejection reported."""
        self._events = events
        self._backoff = backoff
        self._clock = clock
        self._reported: set[str] = set()

    def refresh(self, pods: Iterable[Pod], jobs: Mapping[str, Job], nodes: Collection[str]) -> bool:
        """Back off from nodes that rejected pods since the last call, and send Events.

        Reservation pods are skipped; their reconciler handles them. Return True if any node
        is in backoff.
        """
        reported: set[str] = set()
        for pod in pods:
            if pod.scheduler != SCHEDULER or pod.is_reservation or not pod.node:
                continue
            if not pod.is_finished:
                if pod.is_up:
                    self._backoff.record_success(pod.node, pod.bound or 0)
            elif sentence := rejection_of(pod):
                reported.add(pod.uid)
                is_news = self._clock() <= (pod.bound or pod.created) + IS_NEWS_S
                if is_news and pod.uid not in self._reported:
                    self._report(pod, sentence, jobs)
        self._reported = reported
        self._backoff.retain(nodes)
        return bool(self._backoff.in_backoff())

    def _report(self, pod: Pod, sentence: str, jobs: Mapping[str, Job]) -> None:
        self._backoff.record_rejection(pod.node)
        self._events.enqueue(pod, "TurnedAway", sentence, is_warning=True)
        if pod.owner is not None and (job := jobs.get(pod.owner.uid)) is not None:
            self._events.enqueue(job, "TurnedAway", f"{pod.name}: {sentence}", is_warning=True)
