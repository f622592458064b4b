"""Pods that disruption budgets keep from being evicted: somebody else is stopped, or nobody.

Whether a budget allows an eviction only the API server knows, in that moment. Whom it kept is left
alone for a while, like a node that turned somebody away: first for 5 s, at most 5 min; whoever was
to gain is told. May be forgotten at any time. Owned by `scheduling`.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from runai.hub_service.clusters.kubernetes.actions.node_backoff import Refusals
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod


class Kept(NamedTuple):
    """A pod that was not evicted, for whom it was to be, and what the API server says of that."""

    pod: Pod
    gains: str
    why: str


class Budgets:
    """Who is kept by a budget now, and who waits for that."""

    def __init__(self, events: EventQueue, clock: Callable[[], float]) -> None:
        """Begin with nobody kept; the clock says Unix seconds."""
        self._events = events
        self._refusals = Refusals(clock)
        self._kept: dict[str, Kept] = {}

    def note(self, kept: Iterable[Kept]) -> None:
        """Leave pods alone that were not evicted just now, and tell them what they were spared."""
        for one in kept:
            self._refusals.note(one.pod.uid)
            self._kept[one.pod.uid] = one
            gains = f" for {one.gains}" if one.gains else ""
            self._events.tell(one.pod, "Kept", f"was to be stopped{gains}, but stays: {one.why}")

    def kept(self, pods: Iterable[Pod]) -> set[str]:
        """Return the UIDs of the pods that are left alone now; forget those that are gone."""
        if not self._kept:
            return set()
        self._refusals.keep({pod.uid for pod in pods if pod.deleted is None})
        now = self._refusals.closed()
        self._kept = {uid: one for uid, one in self._kept.items() if uid in now}
        return now

    def told(self, workload: str) -> str:
        """Return what a workload that waits is told of those who were to be stopped for it."""
        for one in self._kept.values():
            if one.gains == workload:
                return f"; {one.pod.key} was to be stopped for it, but stays: {one.why}"
        return ""
