"""Groups of pods that form one workload, with its project and queue age.

A Job of one worker, an Indexed Job with all its workers running together, a PyTorchJob, and a Job
with `runai/gang: "true"` on its pods, are one workload; of everything else each pod is its own. Of
a job array the next elements are shown also before they have pods.
Pods have their Job's age, so that a recreated pod keeps its place in the queue (R9). A held Job has
no pods: its workers are built from its template. Ended programs are remembered: the next start is
told of them. No API calls; unchanged groups are reused.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import is_, itemgetter
from typing import NamedTuple

from runai.hub_service.clusters.kubernetes.objects.array_elements import ArrayJob, array_jobs
from runai.hub_service.clusters.kubernetes.objects.core_objects import PYTORCH_JOB, SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.wire.amounts import MOST_WORKERS


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One workload: its pods that wait for or hold resources, ordered by name."""

    name: str
    project: str
    submitted: float
    pods: tuple[Pod, ...]
    minimum: int
    """Number of pods that must run together."""
    job: Job | None = None
    """The Job of the workload; None: a bare pod."""
    is_clearing: bool = False
    """True while ended pods from before its pause still exist."""
    array: ArrayJob | None = field(default=None, compare=False)
    """The job array of which it is an element."""
    pauses: tuple[float, ...] = ()
    has_begun: bool = True
    """False for an element of an array that never ran: the array's record stands for it."""
    needs: int = field(default=0, compare=False)
    """The array's parallelism that makes the element's pod; 0: it has one."""
    has_ended: bool = False
    """True if a program of it ran and has ended."""

    @property
    def first(self) -> Pod:
        """Return a pod that represents all of them."""
        return self.pods[0]

    @property
    def user(self) -> str:
        """Return its owner."""
        job = self.job if self.array is None else self.array.job
        return self.first.user if job is None or job.spec is None else job.spec.user

    @property
    def saves(self) -> bool:
        """Return True if its pod or its Job says that it saves its work when it is stopped."""
        job = self.job if self.array is None else self.array.job
        return self.first.saves or (job is not None and job.template.saves)

    @property
    def guaranteed(self) -> int | None:
        """Return the guaranteed workers of an elastic Job; None: it is none, or asks for none."""
        job = self.job
        return job.template.guaranteed if job is not None and job.may_be_guaranteed else None

    @property
    def is_resumed(self) -> bool:
        """Return True if a program of it ran before; a joining worker is a later start, too."""
        if self.array is not None:
            return self.has_ended or self.first.index in self.array.job.paused
        if self.job is None:
            return self.has_ended
        joins = self.job.may_be_guaranteed and any(pod.is_up for pod in self.pods)
        return self.has_ended or joins or self.job.is_resumed

    @property
    def is_resizable(self) -> bool:
        """Return True for a single process that may restart on another number of devices."""
        may_be = self.job is not None and self.job.may_be_suspended and self.job.parallelism <= 1
        return may_be and self.first.may_be_resized

    @property
    def missing(self) -> int:
        """Return the number of workers that its Job must still create."""
        return max(0, self.minimum - len(self.pods))

    @property
    def unmade(self) -> Sequence[Pod]:
        """Return the workers that have no pods yet."""
        return [pod for pod in self.pods if not pod.is_made]

    @property
    def refusal(self) -> str:
        """Return why the workload can never run as it is, or ""."""
        first = self.first
        if self.job is not None and min(self.job.parallelism, self.job.completions) > MOST_WORKERS:
            return f"more than {MOST_WORKERS} workers cannot be started together: submit fewer"
        return first.unsupported or (first.is_blind if first.is_made and not first.node else "")


class PodGrouping:
    """Builder of groups that reuses the object of an unchanged one.

    Few of thousands of workloads change between two cycles: the rest cost one comparison each.
    """

    def __init__(self) -> None:
        """Begin with no group built."""
        self._drafts: dict[str, _CachedDraft] = {}
        self._groups: dict[str, tuple[_Draft, PodGroup]] = {}
        self._earlier = _EarlierRuns()

    def groups(
        self,
        pods: Iterable[Pod],
        jobs: Mapping[str, Job],
        namespaces: Mapping[str, str],
        default_project: str,
        awaited: Collection[str] = (),
        window: Callable[[Pod], int] = lambda _request: 1,
    ) -> list[PodGroup]:
        """Return the workloads of our scheduler, oldest first.

        `jobs` are by UID; `namespaces` maps to projects ("" if none); `awaited` are unsuspended
        Jobs that must still create pods. Pods without a possible decision (finished, gated, deleted
        before they ran) are left out. `window` is how many waiting elements of an array with such
        pods are shown.
        """
        self._earlier.update(pods, jobs)
        clearing: set[str] = set()
        members: dict[str, list[Pod]] = {
            uid: [] for uid, job in jobs.items() if _is_queued(job, uid in awaited)
        }
        arrays = array_jobs(pods, jobs)
        for pod in pods:
            if pod.owner is not None and pod.owner.uid in arrays:
                continue
            if pod.scheduler == SCHEDULER and not pod.is_reservation and _is_schedulable(pod, jobs):
                members.setdefault(_workload_uid(pod, jobs), []).append(pod)
            elif (
                pod.owner is not None and pod.owner.kind == PYTORCH_JOB and pod.deleted is not None
            ):
                # The operator counts an ended pod as a failure of the pods that it creates next.
                clearing.add(pod.owner.uid)
        keyed_drafts = [
            (draft.age, draft.first_key, uid, draft)
            for uid, pods_of_uid in members.items()
            if (draft := self._cached_draft(uid, pods_of_uid, jobs, uid in awaited)) is not None
        ]
        for uid, array in arrays.items():
            drafts = _elements(array, window(array.job.template), is_awaited=uid in awaited)
            keyed_drafts += [
                (draft.age, draft.first_key, draft.pods[0].place, draft) for draft in drafts
            ]
        self._drafts = {uid: known for uid, known in self._drafts.items() if uid in members}
        result: dict[str, PodGroup] = {}
        cached: dict[str, tuple[_Draft, PodGroup]] = {}
        for _age, _key, uid, draft in sorted(keyed_drafts, key=itemgetter(0, 1)):
            project = project_of(draft.pods[0], namespaces, default_project)
            label = f"{project}/{draft.name}"
            while label in result:
                label += "~"  # a pod with a Job's name
            job = draft.job
            is_clearing = job is not None and job.is_queued and job.uid in clearing
            has_ended = self._has_ended(draft, jobs)
            known, group = self._groups.get(uid, (None, None))
            if (
                group is None
                or known is not draft
                or (group.name, group.is_clearing) != (label, is_clearing)
                or group.has_ended != has_ended
            ):
                group = _group(draft, project, label, is_clearing=is_clearing)
                group = replace(group, has_ended=has_ended)
            result[label], cached[uid] = group, (draft, group)
        self._groups = cached
        return list(result.values())

    def _has_ended(self, draft: "_Draft", jobs: Mapping[str, Job]) -> bool:
        """Return True if a program of the workload ran and has ended."""
        pod = draft.pods[0]
        job = draft.job if draft.array is None else draft.array.job
        if job is None and pod.owner is not None:
            job = jobs.get(pod.owner.uid)
        return self._earlier.include(pod, job)

    def _cached_draft(
        self,
        uid: str,
        pods: Sequence[Pod],
        jobs: Mapping[str, Job],
        is_awaited: bool,  # noqa: FBT001
    ) -> "_Draft | None":
        """Return the draft of one workload, built anew if it changed; None: it has no workers.

        `is_awaited` is part of the draft: True for a Job whose pods do not exist yet.
        """
        job, age = jobs.get(uid), 0.0
        if job is None:  # a single pod, as old as its Job
            owner = pods[0].owner
            made_by = None if owner is None else jobs.get(owner.uid)
            age = pods[0].created if made_by is None else made_by.created
        known = self._drafts.get(uid)
        if (
            known is None
            or known.job is not job
            or (known.age, known.is_awaited) != (age, is_awaited)
            or len(known.pods) != len(pods)
            # Compare by identity: equality ignores the sentence that we wrote to a pod.
            or not all(map(is_, known.pods, pods))
        ):
            draft = _draft(pods, job, age, is_awaited)
            known = self._drafts[uid] = _CachedDraft(pods, job, age, is_awaited, draft)
        return known.draft if known.draft.pods else None


def project_of(pod: Pod, namespaces: Mapping[str, str], default_project: str) -> str:
    """Return the project of a pod."""
    return pod.project or namespaces.get(pod.namespace) or default_project


def name_of(found: Pod | Job) -> str:
    """Return a workload's name in its project: the submitted one, or NAMESPACE.NAME."""
    if isinstance(found, Job) and found.spec is not None:
        return found.spec.name
    if isinstance(found, Pod) and found.array and found.index is not None:
        return f"{found.array}-{found.index}"
    return f"{found.namespace}.{found.name}"


@dataclass(frozen=True, slots=True)
class _Draft:
    """A workload before its project is known."""

    name: str
    age: float
    pods: tuple[Pod, ...]
    minimum: int
    job: Job | None = None
    first_key: str = ""
    array: ArrayJob | None = None
    needs: int = 0


class _CachedDraft(NamedTuple):
    """A draft with all of its input."""

    pods: Sequence[Pod]
    job: Job | None
    age: float
    is_awaited: bool
    draft: _Draft


def _group(draft: _Draft, project: str, label: str, *, is_clearing: bool) -> PodGroup:
    """Build the group of a draft; `label` is the workload's id, by which workers are named."""
    pods, job, array = draft.pods, draft.job, draft.array
    group = PodGroup(label, project, draft.age, pods, draft.minimum, job, is_clearing)
    if array is not None:
        index = pods[0].index or 0
        return replace(
            group,
            pods=(replace(pods[0], worker=f"{label}-0"),),
            array=array,
            pauses=array.job.paused.get(index, ()),
            has_begun=array.has_begun(index),
            needs=draft.needs,
        )
    if job is None:
        return group
    seated = tuple(_seated(pod, job, label, i) for i, pod in enumerate(pods))
    return replace(group, pods=seated, pauses=job.pauses)


def _elements(array: ArrayJob, waiting: int, *, is_awaited: bool) -> Iterator[_Draft]:
    """Build the elements of an array that hold a node, and the next ones that wait."""
    job = array.job
    bound = [(pod, 0) for pod in array.unfinished if pod.node]
    for pod, needs in [*bound, *array.next_elements(waiting, is_awaited=is_awaited)]:
        seated = replace(pod, seat=f"{job.uid}/{pod.index}")
        key = f"{job.namespace}/{job.name}-{pod.index:09d}"
        name = f"{name_of(job)}-{pod.index}"
        yield _Draft(name, job.created, (seated,), 1, None, key, array, needs)


def _is_queued(job: Job, is_awaited: bool) -> bool:  # noqa: FBT001
    """Return True if a Job is a workload even without pods."""
    if job.template.scheduler != SCHEDULER or job.is_finished or job.is_array:
        return False
    # After its parallelism was raised while held, a Job is not one workload any more: its pods will
    # be single, but it has none until it is unsuspended.
    return job.is_queued or (job.is_whole and is_awaited and not job.is_suspended)


def _draft(
    pods: Sequence[Pod],
    whole: Job | None,
    age: float,
    is_awaited: bool,  # noqa: FBT001
) -> _Draft:
    """Build one workload from its pods.

    `whole` is its Job; without one it is a single pod of that `age`.
    """
    if whole is None:
        first = pods[0]
        return _Draft(name_of(first), age, (first,), 1, None, first.key)
    ordered = sorted(pods, key=lambda pod: (not pod.node, pod.key))
    # While pods still stop, their successors wait with the Job.
    if whole.runs_at_once:
        ordered = list({pod.index: pod for pod in reversed(ordered)}.values())[::-1]
    included = sorted(
        ordered[: max(whole.parallelism, _bound_count(ordered))], key=lambda pod: pod.key
    )
    if whole.is_queued or is_awaited:
        included += _unmade(included, whole)
    first_key = included[0].key if included else ""
    return _Draft(name_of(whole), whole.created, tuple(included), whole.minimum, whole, first_key)


def _unmade(existing: Sequence[Pod], job: Job) -> list[Pod]:
    """Return the workers for which a Job has no pods yet."""
    used: set[int | None] = set()
    # An elastic job may get more workers than it needs.
    desired = job.completions if job.is_elastic or job.min_workers else 0
    if job.runs_at_once:
        used = {pod.index for pod in existing} | job.done
    free = (index for index in range(job.completions) if index not in used)
    return [
        job.worker(index)
        # A foreign Job may ask for two billion pods; it is refused.
        for index in islice(free, max(0, min(desired or job.minimum, MOST_WORKERS) - len(existing)))
    ]


def _seated(pod: Pod, job: Job, label: str, position: int) -> Pod:
    """Return a worker with a name and place that its next pod will have, too."""
    number = pod.index if job.runs_at_once and pod.index is not None else position
    return replace(pod, worker=f"{label}-{number}", seat=f"{job.uid}/{number}")


def _bound_count(pods: Sequence[Pod]) -> int:
    return sum(bool(pod.node) for pod in pods)


def _workload_uid(pod: Pod, jobs: Mapping[str, Job]) -> str:
    """Return the UID of a pod's workload: its Job's, or its own."""
    job = jobs.get(pod.owner.uid) if pod.owner is not None else None
    if job is not None and (job.is_whole or pod.is_gang):
        return job.uid
    return pod.uid


def _is_schedulable(pod: Pod, jobs: Mapping[str, Job]) -> bool:
    """Return True if a pod is bound and runs, or may be bound now."""
    if pod.node or pod.is_finished:
        return not pod.is_finished
    if pod.deleted is not None or pod.is_gated:
        return False
    if pod.owner is None or not pod.owner.is_job:
        return True
    # The pod may arrive before its Job, and a suspended Job's pods are about to be deleted.
    job = jobs.get(pod.owner.uid)
    if job is None or job.is_suspended or job.is_finished:
        return False
    # Surplus pods of a scaled-down elastic Job are about to be deleted.
    return not (job.is_elastic and pod.index is not None and pod.index >= job.completions)


class _EarlierRuns:
    """Set of Jobs, and of places in Jobs, with an ended program.

    A pod that was evicted, or lost with its node, leaves no other trace.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._running: dict[str, str] = {}
        """Run keys (`_run_key`) of running programs, by the UID of their pod."""
        self._ended: set[str] = set()

    def update(self, pods: Iterable[Pod], jobs: Mapping[str, Job]) -> None:
        """Record running and ended programs; `jobs` are by UID."""
        before, self._running = self._running, {}
        for pod in pods:
            job = None if pod.owner is None else jobs.get(pod.owner.uid)
            if job is None or not (pod.is_up or pod.exit_code is not None or pod.uid in before):
                continue
            if pod.is_finished or pod.deleted is not None:
                self._ended.add(_run_key(pod, job))
            else:
                self._running[pod.uid] = _run_key(pod, job)
        self._ended.update(key for uid, key in before.items() if uid not in self._running)
        self._ended = {key for key in self._ended if key.partition("/")[0] in jobs}

    def include(self, pod: Pod, job: Job | None) -> bool:
        """Return True if a program of a pod's Job, or of its place in the Job, has ended."""
        return job is not None and _run_key(pod, job) in self._ended


def _run_key(pod: Pod, job: Job) -> str:
    """Return the UID of a whole Job, else the place in it; a pod without an index has its own."""
    if job.is_whole:
        return job.uid
    return f"{job.uid}/{pod.uid if pod.index is None else pod.index}"
