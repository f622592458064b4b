"""Assumed state: our own writes until the informers confirm them.

It keeps an early cycle from repeating a write. It may be lost at any time: the API server refuses
repeated writes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import BoundDevices
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup

LEAVES_WITHIN_S = 30.0
"""Time within which an evicted pod is expected to be gone."""
MAKES_PODS_WITHIN_S = 30.0
"""Time for which devices are kept for the pods of an unsuspended Job."""


class Bound(NamedTuple):
    """A pod's binding: node, time and device shares."""

    node: str
    at: float
    grant: BoundDevices | None = None


@dataclass(slots=True)
class AssumedState:
    """Writes that the informers have not confirmed, by the pod's UID."""

    bound: dict[str, Bound] = field(default_factory=dict)
    evicted: dict[str, float] = field(default_factory=dict)
    wait_reasons: dict[str, str] = field(default_factory=dict)
    doubtful: dict[str, Pod] = field(default_factory=dict)
    awaited: dict[str, float] = field(default_factory=dict)
    """Time at which Jobs were unsuspended that must still create pods, by UID."""
    surplus: dict[str, float] = field(default_factory=dict)
    """Time at which an array's Job was told to remove these waiting pods."""

    def drop_expired(self, jobs: Mapping[str, Job], now: float) -> Collection[str]:
        """Drop expectations older than 30 s; return the Jobs (UIDs) that must still create pods."""
        self.awaited = {
            uid: since
            for uid, since in self.awaited.items()
            if uid in jobs and since <= now < since + MAKES_PODS_WITHIN_S
        }
        # Pods that their array still has by then stay: its Job was told to keep them after all.
        self.surplus = {
            uid: at for uid, at in self.surplus.items() if at <= now < at + LEAVES_WITHIN_S
        }
        return self.awaited

    def record_scaled(self, job: Job, terminating: Iterable[str], now: float) -> None:
        """Record a scaled Job: new pods are expected, and the pods `terminating` (UIDs) end."""
        self.evicted.update(dict.fromkeys(terminating, now))
        if not job.is_suspended:
            self.awaited[job.uid] = now

    def confirm(self, groups: Iterable[PodGroup]) -> None:
        """Stop expecting pods of Jobs that have created all of them."""
        for group in groups:
            if group.job is not None and not group.job.is_queued and not group.unmade:
                self.awaited.pop(group.job.uid, None)

    def reconcile(self, pods: Sequence[Pod]) -> list[Pod]:
        """Drop writes that the pods confirm; return the pods with the other writes applied."""
        unbound = {pod.uid for pod in pods if not pod.node}
        staying = {pod.uid for pod in pods if pod.deleted is None}
        self.bound = {uid: bound for uid, bound in self.bound.items() if uid in unbound}
        self.evicted = {uid: at for uid, at in self.evicted.items() if uid in staying}
        self.wait_reasons = {uid: text for uid, text in self.wait_reasons.items() if uid in unbound}
        if not (self.bound or self.evicted or self.wait_reasons or self.surplus):
            return list(pods)
        return [self._with_writes(pod) for pod in pods]

    def _with_writes(self, pod: Pod) -> Pod:
        """Return the pod as it will be once our writes are confirmed."""
        if (bound := self.bound.get(pod.uid)) is not None:
            pod = replace(pod, node=bound.node, bound=bound.at, grant=bound.grant)
        if (evicted := self.evicted.get(pod.uid, self.surplus.get(pod.uid))) is not None:
            pod = replace(pod, deleted=evicted + LEAVES_WITHIN_S)
        if (sentence := self.wait_reasons.get(pod.uid)) is not None:
            pod = replace(pod, sentence=sentence)
        return pod
