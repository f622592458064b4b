"""What we did ourselves and the watches have not shown yet.

So that a cycle that comes before them does nothing twice. May be forgotten at any time: the API
server refuses what is done twice. Owned by `cluster`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import Grant
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.objects.pod_groups import Group

LEAVES_WITHIN_S = 30.0
MAKES_PODS_WITHIN_S = 30.0
"""How long devices are kept for the pods of a Job that was let go."""


class Bound(NamedTuple):
    """Where a pod was bound, when, and to which parts of devices."""

    node: str
    at: float
    grant: Grant | None = None


@dataclass(slots=True)
class OurDoing:
    """What we did and the watches have not shown yet, by the pod's UID."""

    bound: dict[str, Bound] = field(default_factory=dict)
    evicted: dict[str, float] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    doubtful: dict[str, Pod] = field(default_factory=dict)
    awaited: dict[str, float] = field(default_factory=dict)
    """Since when Jobs that were let go are to make their pods, by UID."""

    def still_awaited(self, jobs: Mapping[str, Job], now: float) -> Collection[str]:
        """Return the UIDs of Jobs whose pods are to come; forget those that took too long."""
        self.awaited = {
            uid: since
            for uid, since in self.awaited.items()
            if uid in jobs and since <= now < since + MAKES_PODS_WITHIN_S
        }
        return self.awaited

    def scaled(self, job: Job, leaving: Iterable[str], now: float) -> None:
        """Note that a Job may have other workers: some are to be made, some leave, by UID."""
        self.evicted.update(dict.fromkeys(leaving, now))
        if not job.is_suspended:
            self.awaited[job.uid] = now

    def seen(self, found: Iterable[Group]) -> None:
        """Note which Jobs have made all of their pods."""
        for group in found:
            if group.job is not None and not group.job.is_held and not group.unmade:
                self.awaited.pop(group.job.uid, None)

    def applied_to(self, pods: Sequence[Pod]) -> list[Pod]:
        """Return pods as they are by now; forget what the watches have caught up with."""
        here = {pod.uid: pod for pod in pods}
        self.bound = {u: at for u, at in self.bound.items() if u in here and not here[u].node}
        self.evicted = {
            u: at for u, at in self.evicted.items() if u in here and here[u].deleted is None
        }
        self.told = {u: text for u, text in self.told.items() if u in here and not here[u].node}
        if not (self.bound or self.evicted or self.told):
            return list(pods)
        return [self._applied(pod) for pod in pods]

    def _applied(self, pod: Pod) -> Pod:
        if (bound := self.bound.get(pod.uid)) is not None:
            pod = replace(pod, node=bound.node, bound=bound.at, grant=bound.grant)
        if (evicted := self.evicted.get(pod.uid)) is not None:
            pod = replace(pod, deleted=evicted + LEAVES_WITHIN_S)
        if (told := self.told.get(pod.uid)) is not None:
            pod = replace(pod, sentence=told)
        return pod
