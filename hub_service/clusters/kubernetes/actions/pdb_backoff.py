"""Backoff for pods that disruption budgets (PDBs) protect from eviction.

Only the API server knows at the moment of the eviction whether a budget allows it. A protected pod
is not chosen again for 5 s, doubled each time up to 5 min, so that another victim is chosen, or
none. The workload that was to gain is told the reason. The state may be lost at any time.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from runai.hub_service.clusters.kubernetes.actions.node_backoff import NodeBackoff
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod


class ProtectedPod(NamedTuple):
    """A protected pod, the workload that its eviction was for, and the API server's message."""

    pod: Pod
    gains: str
    why: str


class PdbBackoff:
    """Pods in PDB backoff, and the workloads that wait for them."""

    def __init__(self, events: EventQueue, clock: Callable[[], float]) -> None:
        """Begin without backoff; `clock` returns Unix seconds."""
        self._events = events
        self._backoff = NodeBackoff(clock)
        self._protected: dict[str, ProtectedPod] = {}

    def record_protected(self, protected_pods: Iterable[ProtectedPod]) -> None:
        """Start the backoff of pods after a refused eviction, and send them Events."""
        for entry in protected_pods:
            self._backoff.record_rejection(entry.pod.uid)
            self._protected[entry.pod.uid] = entry
            gains = f" for {entry.gains}" if entry.gains else ""
            self._events.enqueue(
                entry.pod, "Kept", f"was to be stopped{gains}, but stays: {entry.why}"
            )

    def protected_pods(self, pods: Iterable[Pod]) -> set[str]:
        """Return the UIDs of pods in backoff; drop pods that are gone."""
        if not self._protected:
            return set()
        self._backoff.retain({pod.uid for pod in pods if pod.deleted is None})
        now = self._backoff.in_backoff()
        self._protected = {uid: entry for uid, entry in self._protected.items() if uid in now}
        return now

    def explanation(self, workload: str) -> str:
        """Return the sentence for a workload with a protected victim; "" if there is none."""
        for entry in self._protected.values():
            if entry.gains == workload:
                return f"; {entry.pod.key} was to be stopped for it, but stays: {entry.why}"
        return ""
