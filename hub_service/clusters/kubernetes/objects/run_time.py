"""Running time of Jobs and pods with a time limit, over all of their attempts. Pure.

Pods show the present run, and the runs that ended by themselves. A stop deletes pods, so its patch
notes on the Job how long it ran until then; running before that instant is not counted again.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job, Ran
from runai.hub_service.model.time_limits import bound_for_core


class TimeLimited(NamedTuple):
    """A Job, an element of an array, or a single pod with a time limit."""

    subject: Job | Pod
    element: int
    """Index of an array's element; else 0."""
    limit: int
    ran: float
    """Seconds of running before `since`."""
    since: float | None
    """Time since which it runs; None: it does not."""
    up: tuple[Pod, ...]
    """Pods that run now."""

    def seconds_at(self, now: float) -> float:
        """Return the seconds that it has run."""
        return self.ran + (0.0 if self.since is None else max(0.0, now - self.since))

    @property
    def ends_at(self) -> float | None:
        """Return when it has used up its time; None: it does not run."""
        return None if self.since is None else self.since + max(0.0, self.limit - self.ran)

    @property
    def is_over(self) -> bool:
        """Return True if it was ended for good."""
        return isinstance(self.subject, Job) and self.element in self.subject.timed_out

    @property
    def numbers(self) -> tuple[int, float, float | None]:
        """Return what a record shows: the limit, seconds before the present run, its start."""
        return self.limit, self.ran, self.since


def timed(
    pods: Iterable[Pod], jobs: Mapping[str, Job], limit_of: Callable[[Job | Pod], int | None]
) -> dict[str, TimeLimited]:
    """Return what has a limit: Jobs by UID, elements by `UID/index`, pods without owner by UID."""
    limits = {uid: limit for uid, job in jobs.items() if (limit := limit_of(job)) is not None}
    subjects: dict[str, tuple[Job | Pod, int, int]] = {}
    for uid, limit in limits.items():
        job = jobs[uid]
        if job.is_array:
            subjects |= {f"{uid}/{index}": (job, index, limit) for index in job.ran}
        elif job.is_whole:
            subjects[uid] = job, 0, limit
    found: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.scheduler != SCHEDULER or pod.is_reservation or pod.bound is None:
            continue
        if pod.owner is None:
            key, own = pod.uid, limit_of(pod)
            if own is not None:
                subjects[key] = pod, 0, own
        elif (uid := pod.owner.uid) not in limits:
            continue  # nearly all; or its controller would make another one
        elif jobs[uid].is_array and pod.index is not None:
            key = f"{uid}/{pod.index}"
            subjects.setdefault(key, (jobs[uid], pod.index, limits[uid]))
        else:
            key = uid
        if key in subjects:
            found[key].append(pod)
    return {
        key: TimeLimited(subject, index, limit, *_run(_noted(subject, index), found.get(key, ())))
        for key, (subject, index, limit) in subjects.items()
    }


def bound_of(numbers: tuple[int, float, float | None], pods: Iterable[Pod]) -> int:
    """Return the core's bound of a workload with these pods (`bound_for_core`)."""
    starts = [int(p.bound) for p in pods if p.node and p.deleted is None and p.bound is not None]
    return bound_for_core(*numbers, min(starts, default=None))


def _noted(subject: Job | Pod, index: int) -> Ran:
    return subject.ran.get(index, Ran()) if isinstance(subject, Job) else Ran()


def _run(noted: Ran, pods: Iterable[Pod]) -> tuple[float, float | None, tuple[Pod, ...]]:
    """Return the seconds before the present run, since when it runs, and the pods that run."""
    up: list[Pod] = []
    since, ended = None, []
    for pod in pods:
        bound = pod.bound or 0.0
        begun = max(bound, noted.until)
        if pod.is_finished and pod.deleted is not None and bound < noted.until:
            continue  # it ended by the noted stop, and the grace of a stop is no running
        if pod.is_finished:
            ended.append((begun, max(begun, pod.ended or begun)))
        elif pod.deleted is None:
            up.append(pod)
            since = begun if since is None else min(since, begun)
    ran, until = noted.seconds, noted.until
    for begun, end in sorted(ended):  # workers run side by side: count each second once
        end = end if since is None else min(end, since)  # noqa: PLW2901
        ran += max(0.0, end - max(begun, until))
        until = max(until, end)
    return ran, since, tuple(up)
