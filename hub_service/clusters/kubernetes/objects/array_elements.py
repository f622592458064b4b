"""Elements of a job array: an Indexed Job of which each pod is a workload of its own.

The Job controller makes pods by index, as many as `parallelism` says. The scheduler raises that for
the elements that it starts; it is lowered only while no running pod can be taken for a waiting one.
Pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, takewhile

from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import MOVED, Job, Steps, path_of

SETTLED_S = 5.0
"""Seconds after a binding in which the Job controller may not know of it."""
MOST_MOVES = 256
"""Moves that an array's annotation keeps: all annotations of an object share 256 KiB."""


@dataclass(frozen=True, slots=True)
class ArrayJob:
    """An array's Job with its pods, by index, oldest first."""

    job: Job
    pods: Mapping[int, tuple[Pod, ...]]

    def of(self, index: int) -> Pod | None:
        """Return the pod that stands for an element: one that has not ended, else the last."""
        return _current(self.pods.get(index, ()))

    def has_begun(self, index: int) -> bool:
        """Return True if an element has ever run."""
        ended = not self.job.is_suspended and any(p.is_finished for p in self.pods.get(index, ()))
        holds = any(pod.uses_node for pod in self.pods.get(index, ()))
        return index in self.job.paused or self.job.is_over(index) or ended or holds

    @property
    def unfinished(self) -> list[Pod]:
        """Return the pods that have not ended."""
        return [pod for pod in chain(*self.pods.values()) if not pod.is_finished]

    @property
    def bound(self) -> list[Pod]:
        """Return the pods that have a node, and stay there."""
        return [pod for pod in self.unfinished if pod.node and pod.deleted is None]

    @property
    def unbound(self) -> list[Pod]:
        """Return the pods that wait for a node."""
        return [pod for pod in self.unfinished if not pod.node and pod.deleted is None]

    @property
    def is_retried(self) -> bool:
        """Return True if an element has failed and its next pod is not made yet."""
        return any(map(self._fails, self.pods))

    def missing(self) -> Iterator[tuple[int, int]]:
        """Yield the unfinished elements without a pod, each with the parallelism that makes it."""
        there = {pod.index for pod in self.unfinished} | self.job.done
        needs = len(self.unfinished)
        for index in range(self.job.completions):
            if index not in there:
                needs += 1
                yield index, needs

    def next_elements(self, most: int, *, is_awaited: bool) -> Iterator[tuple[Pod, int]]:
        """Yield the next elements that may start, by index, each with the parallelism it needs.

        It is 0 for an element with a pod. None follows one whose pod is asked for and has not come:
        a quota of the namespace may forbid it.
        """
        if self.job.deleted is not None or self.job.is_suspended != self.job.is_queued:
            return
        requested = 0 if self.job.is_queued or is_awaited else self.job.parallelism
        deleted = self.job.deleted_elements
        waiting = [] if self.job.is_suspended else self.unbound
        made = [(p, 0) for p in waiting if not p.is_gated and p.index not in deleted]
        missing = (m for m in self.missing() if m[0] not in deleted and not self._fails(m[0]))
        unmade = takewhile(lambda one: one[1] > requested, missing)
        found = [*made, *((self.job.worker(i), needs) for i, needs in islice(unmade, most))]
        yield from sorted(found, key=lambda one: one[0].index or 0)[:most]

    def surplus(self, now: float) -> list[Pod]:
        """Return the waiting pods that go if `parallelism` is lowered to the running ones.

        () if a running pod could go instead: the Job controller removes pods without a node first,
        so it must have seen that each running one has a node.
        """
        bound, job = self.bound, self.job
        is_seen = job.ready == len(bound) < job.parallelism and not job.is_suspended
        is_settled = all(p.is_up and (p.bound or now) <= now - SETTLED_S for p in bound)
        waiting = self.unbound
        if not is_seen or not is_settled or self.is_retried:
            return []
        return [] if any(pod.index in job.deleted_elements for pod in waiting) else waiting

    @property
    def min_parallelism(self) -> int:
        """Return the parallelism without which the array would not end.

        Failed elements are tried again by the Job controller alone. Deleted elements without a pod
        end by one; they get it last.
        """
        deleted = self.job.deleted_elements
        if not deleted and not self.is_retried:
            return 0
        missing = list(self.missing())
        is_live = any(index not in deleted for index, _ in missing)
        is_live = is_live or any(pod.index not in deleted for pod in self.unfinished)
        needed = (n for index, n in missing if not is_live or self._fails(index))
        return max(needed, default=0)

    def _fails(self, index: int) -> bool:
        pod = None if self.job.is_suspended or self.job.is_over(index) else self.of(index)
        is_over = pod is not None and pod.is_finished and pod.exit_code != 0
        return is_over and index not in self.job.deleted_elements


def array_jobs(
    pods: Iterable[Pod], jobs: Mapping[str, Job], *, finished: bool = False
) -> dict[str, ArrayJob]:
    """Return the arrays of our scheduler, by the UIDs of their Jobs; `finished` ones too."""
    found: dict[str, dict[int, tuple[Pod, ...]]] = {
        uid: {}
        for uid, job in jobs.items()
        if job.is_array
        and (finished or not job.is_finished)
        and job.template.scheduler == SCHEDULER
    }
    for pod in pods if found else ():
        uid, index = "" if pod.owner is None else pod.owner.uid, pod.index
        if uid in found and index is not None and index < jobs[uid].completions:
            found[uid][index] = (*found[uid].get(index, ()), pod)
    return {uid: ArrayJob(jobs[uid], by_index) for uid, by_index in found.items()}


def element_moves(job: Job) -> Mapping[int, str]:
    """Return why elements of an array moved, if their last stop was a move; {} if unreadable."""
    try:
        stored: dict[str, str] = json.loads(job.moved or "{}")
        return {int(index): str(why) for index, why in stored.items()}
    except (AttributeError, RecursionError, TypeError, ValueError):
        return {}  # foreign content


def with_moves(job: Job, stops: Mapping[int, str]) -> Steps:
    """Return the steps that store elements' stops, each with the reason of its move or ""."""
    before, ended = element_moves(job), job.done | job.deleted_elements
    # In the order of the moves: the annotation keeps the latest ones.
    later = {**{i: why for i, why in before.items() if i not in stops}, **stops}
    moves = {str(i): why for i, why in later.items() if why and i not in ended}
    path = path_of(MOVED)
    if not moves:
        return [{"op": "remove", "path": path}] if job.moved else []
    text = json.dumps(dict(list(moves.items())[-MOST_MOVES:]), separators=(",", ":"))
    return [{"op": "add", "path": path, "value": text}]


def _current(pods: Iterable[Pod]) -> Pod | None:
    return max(pods, key=lambda pod: (not pod.is_finished, pod.created, pod.name), default=None)
