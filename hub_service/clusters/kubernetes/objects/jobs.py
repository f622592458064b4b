"""Jobs, and the patches that suspend and resume them.

A *queued* Job has no pods: we suspended it, an annotation says so, and it keeps its place. Eviction
would pause a Job too, but after each the Job controller waits up to ten minutes before it makes the
pod again; a resumed Job gets its pods at once. A Job that a user suspended is not queued. Pure.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import when
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    GUARANTEED,
    KILLED,
    MAX_RUNTIME,
    PRIORITY,
    PYTORCH_JOB,
    QUEUE_REASON,
    SAVES,
    Pod,
    figure,
    read_pod,
)
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    CHECKPOINTS,
    DELETED_ELEMENTS,
    PAUSED_ELEMENTS,
    TIMED_OUT,
    read_spec,
)
from runai.hub_service.model import arrays
from runai.hub_service.model.records import ElasticState, WorkloadSpec
from runai.hub_service.wire.amounts import MOST_WORKERS
from runai.hub_service.wire.elastic_messages import MessageError, Target

ELASTIC = "runai/elastic"
"""Annotation: members and measured speed of an elastic job, as JSON."""


def read_elastic(annotations: Mapping[str, str]) -> ElasticState:
    """Parse the stored state; unreadable content gives the state of a new job."""
    try:
        stored: dict[str, Any] = json.loads(annotations.get(ELASTIC, "{}"))
        target = stored.get("target")
        return ElasticState(
            target=None if target is None else Target.from_json(target),
            losses={str(name): int(times) for name, times in stored.get("losses", {}).items()},
            throughput={int(n): float(v) for n, v in stored.get("throughput", {}).items()},
            global_batch=int(stored.get("global_batch", 0)),
            steps=int(stored.get("steps", 0)),
            sized=None if stored.get("sized") is None else float(stored["sized"]),
            resizes=int(stored.get("resizes", 0)),
            finishers=tuple(map(str, stored.get("finishers", ()))),
            saves=stored.get("saves") is True,
        )
    except (
        *(AttributeError, MessageError, TypeError, ValueError),
        *(OverflowError, RecursionError),  # 1e999 steps, a million brackets
    ):
        return ElasticState()


def elastic_text(state: ElasticState) -> str:
    """Serialize an elastic job's state without `phases`, which workers report again."""
    fields = asdict(replace(state, phases={}))
    del fields["phases"]
    fields["target"] = None if state.target is None else state.target.to_json()
    return json.dumps(fields, separators=(",", ":"))


PAUSES = "runai/pauses"
"""Annotation: times at which the scheduler stopped it, as a JSON list of Unix seconds."""
MOVED = "runai/moved"
"""Annotation: the reason of its last stop if that was a move; of an array JSON, by index."""
SUSPENDED_BY = "runai/suspended-by"
STARTS = "runai/starts"
"""Annotation: times at which it was unsuspended, in the same format."""
MIN_WORKERS = "runai/min-workers"
"""Annotation of an elastic Job: its minimum of workers, if changed after submission."""
MOST_TIMES = 1000
MOST_TIMES_OF_ELEMENT = 8
"""Thousands of elements share one annotation of 256 KiB."""
LAST = 1e11
"""Unix seconds: upper bound of times in annotations."""
RAN = "runai/ran"
"""Annotation: how long it ran until its last stop; of an array each element, by its index."""


class Ran(NamedTuple):
    """Seconds of running until an instant, as noted on a Job."""

    seconds: float = 0.0
    until: float = 0.0


Steps = list[dict[str, Any]]
"""A JSON Patch."""
_KUEUE = "kueue.x-k8s.io/queue-name"
_CONTROLLER = "kubernetes.io/job-controller"
_SERVED = {"Job": ("batch/v1", "jobs"), PYTORCH_JOB: ("kubeflow.org/v1", "pytorchjobs")}


@dataclass(frozen=True, slots=True)
class Job:
    """Request and status of a batch Job or a PyTorchJob. Times in Unix seconds."""

    uid: str
    namespace: str
    name: str
    created: float
    completions: int
    parallelism: int
    is_indexed: bool
    is_suspended: bool
    succeeded: int
    template: Pod
    """Request of each worker, as a pod that is not created yet."""
    templates: tuple[Pod, ...] = ()
    """Request of each worker, if they differ."""
    min_workers: int = 0
    """Minimum of workers; 0: not given, all are needed."""
    kind: str = "Job"
    is_queued: bool = False
    """True if the scheduler suspended it: it waits in the queue."""
    is_freed: bool = False
    """True if a user resumed it while it was queued: the annotation is out of date."""
    may_be_suspended: bool = True
    """True if no other controller decides about `suspend`."""
    outcome: str = ""
    """`Complete`, `Failed`, or "" while it is neither final nor about to be."""
    why: str = ""
    """Kubernetes' message about the outcome."""
    finished: float | None = None
    deleted: float | None = None
    failed: int = 0
    completed: frozenset[int] = frozenset()
    """Indexes of an Indexed Job that succeeded."""
    failed_indexes: frozenset[int] = frozenset()
    """Indexes that failed for good (`backoffLimitPerIndex`): they get no pod again."""
    starts: tuple[float, ...] = ()
    pauses: tuple[float, ...] = ()
    killed: tuple[float, ...] = ()
    moved: str = ""
    """The reason of its last stop if that was a move, as annotated; else ""."""
    spec: WorkloadSpec | None = None
    """The submitted specification; None if not submitted through us."""
    suspended_by: str = ""
    elastic: ElasticState | None = None
    """Stored state of an elastic job."""
    checkpoint_dir: str = ""
    """Checkpoint directory in the file system of its workers."""
    ready: int = 0
    """Number of an array's pods that the Job controller has seen ready."""
    paused: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Elements of an array that ran before, with the times of their pauses."""
    paused_text: str = field(default="", compare=False)
    deleted_elements: frozenset[int] = frozenset()
    ran: Mapping[int, Ran] = field(default_factory=dict)
    """Running time until the last stop: of a whole Job at 0, of an array by element."""
    timed_out: frozenset[int] = frozenset()
    """Elements that ran their time out; 0: a whole Job."""
    has_notes: bool = field(default=True, compare=False)
    has_suspend: bool = field(default=True, compare=False)
    has_policy: bool = field(default=True, compare=False)
    """True if the field exists; a JSON Patch depends on that."""

    @property
    def path(self) -> str:
        """Return the path of the object in the API."""
        version, plural = _SERVED[self.kind]
        return f"/apis/{version}/namespaces/{self.namespace}/{plural}/{self.name}"

    @property
    def api_version(self) -> str:
        """Return the API version of its kind."""
        return _SERVED[self.kind][0]

    @property
    def is_finished(self) -> bool:
        """Return True if it will create no more pods."""
        return bool(self.outcome)

    @property
    def runs_at_once(self) -> bool:
        """Return True for an Indexed Job of several workers that all run together."""
        return self.is_indexed and self.parallelism >= self.completions > 1

    @property
    def is_whole(self) -> bool:
        """Return True if the Job is one workload; otherwise each of its pods is one."""
        if self.is_array:
            return False
        return self.parallelism <= 1 or self.runs_at_once or self.template.is_gang

    @property
    def is_resumed(self) -> bool:
        """Return True if its pods ran before, or one of them failed.

        For foreign Jobs the first start is not recorded.
        """
        return len(self.starts) > (self.spec is not None) or self.failed > 0

    @property
    def is_array(self) -> bool:
        """Return True for a job array that was submitted through us."""
        is_array = self.is_indexed and self.spec is not None and self.spec.is_array
        return is_array and self.spec is not None and self.spec.array == self.completions

    @property
    def is_elastic(self) -> bool:
        """Return True if it runs with as many of its workers as fit."""
        return self.spec is not None and self.spec.elastic and self.spec.workers > 1

    @property
    def done(self) -> frozenset[int]:
        """Return the indexes that get no pod again."""
        return self.completed | self.failed_indexes

    def is_over(self, index: int) -> bool:
        """Return True if an index gets no pod again."""
        return index in self.completed or index in self.failed_indexes

    @property
    def may_be_guaranteed(self) -> bool:
        """Return True if it may have guaranteed workers: it is elastic."""
        return self.is_elastic or self.min_workers > 0 or self.template.may_be_resized

    @property
    def minimum(self) -> int:
        """Return how many of the unfinished workers must run together."""
        if not self.is_whole:
            return 1
        if self.spec is not None and self.is_elastic:
            return self.spec.min_workers
        if self.min_workers:
            return min(self.min_workers, self.completions)
        return max(
            1, min(self.parallelism, self.completions - self.succeeded - len(self.failed_indexes))
        )

    def worker(self, index: int) -> Pod:
        """Return one worker as a pod that is not created yet."""
        template = self.templates[index] if self.templates else self.template
        name = template.name if self.templates else f"{self.name}-{index}"
        return replace(template, uid=f"{self.uid}/{index}", name=name, index=index, is_made=False)


def read_job(found: Object) -> Job:
    """Parse a Job."""
    metadata, spec, status = found["metadata"], found["spec"], found.get("status", {})
    annotations = metadata.get("annotations", {})
    parallelism = int(spec.get("parallelism", 1))
    is_suspended = bool(spec.get("suspend"))
    completions = int(spec.get("completions", parallelism))
    outcome, submitted = _outcome(status), _as_scaled(read_spec(annotations), completions, metadata)
    return Job(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=when(metadata["creationTimestamp"]),
        completions=completions,
        parallelism=parallelism,
        is_indexed=spec.get("completionMode") == "Indexed",
        is_suspended=is_suspended,
        succeeded=int(status.get("succeeded", 0)),
        template=pod_from_template(found, found["spec"]["template"]),
        is_queued=is_suspended and QUEUE_REASON in annotations,
        is_freed=not is_suspended and QUEUE_REASON in annotations,
        may_be_suspended=_can_be_suspended(metadata, spec),
        outcome=outcome.get("type", ""),
        why=outcome.get("message", ""),
        finished=when(outcome["lastTransitionTime"]) if outcome else None,
        deleted=when(deleted) if (deleted := metadata.get("deletionTimestamp")) else None,
        failed=int(status.get("failed", 0)),
        completed=_indexes(status.get("completedIndexes", "")),
        failed_indexes=_indexes(status.get("failedIndexes", "")),
        starts=times_noted(annotations, STARTS),
        pauses=times_noted(annotations, PAUSES),
        killed=times_noted(annotations, KILLED),
        moved=annotations.get(MOVED, ""),
        spec=submitted,
        suspended_by=annotations.get(SUSPENDED_BY, ""),
        elastic=read_elastic(annotations) if submitted is not None and submitted.elastic else None,
        checkpoint_dir=annotations.get(CHECKPOINTS, ""),
        ready=int(status.get("ready", 0)) if submitted is not None and submitted.is_array else 0,
        paused=_paused_elements(annotations),
        paused_text=annotations.get(PAUSED_ELEMENTS, ""),
        deleted_elements=_indexes_noted(annotations, DELETED_ELEMENTS),
        ran=ran_noted(annotations),
        timed_out=timed_out_noted(annotations),
        has_notes="annotations" in metadata,
        has_suspend="suspend" in spec,
    )


def with_templates(job: Job, change: Callable[[Pod], Pod]) -> Job:
    """Return a Job with `change` applied to the requests of its workers."""
    templates = tuple(change(pod) for pod in job.templates)
    return replace(job, template=change(job.template), templates=templates)


def suspend_patch(
    job: Job,
    *,
    now: float,
    why: str,
    priority: int,
    moved: str = "",
    ran: Mapping[int, Ran] | None = None,
) -> Steps:
    """Return the patch that suspends a Job and lets it wait in the queue.

    `moved` is the reason of a move, and `ran` its running time until now, if it has a limit.
    """
    notes = _ran_notes(job, ran) | {QUEUE_REASON: why, PRIORITY: str(priority)}
    notes[PAUSES] = _text((*job.pauses, now))
    return _stopping(job, notes, moved)


def _stopping(job: Job, notes: Mapping[str, str], moved: str = "") -> Steps:
    notes = {**notes, MOVED: moved} if moved else notes
    removal: Steps = [{"op": "remove", "path": path_of(MOVED)}] if job.moved and not moved else []
    suspend = _suspend_steps(job, is_suspended=True)
    return [*_unchanged(job), *_noted(job, notes), *removal, *suspend]


def _ran_notes(job: Job, ran: Mapping[int, Ran] | None) -> dict[str, str]:
    return {RAN: ran_text(job, ran)} if ran else {}


def resizing(job: Job, *, why: str, priority: int, ran: Mapping[int, Ran] | None = None) -> Steps:
    """Return the patch that restarts a Job's only pod with other devices.

    The Job waits in the queue as a held one: if the service dies now, it restarts with the devices
    that are free.
    """
    notes = _ran_notes(job, ran) | {QUEUE_REASON: why, PRIORITY: str(priority)}
    if job.elastic is not None:
        notes[ELASTIC] = elastic_text(replace(job.elastic, resizes=job.elastic.resizes + 1))
    return _stopping(job, notes)


def unsuspend_patch(job: Job, *, now: float) -> Steps:
    """Return the patch that unsuspends a held Job."""
    notes = {STARTS: _text((*job.starts, now))}
    freed = {"op": "remove", "path": path_of(QUEUE_REASON)}
    return [*_unchanged(job), *_noted(job, notes), freed, *_suspend_steps(job, is_suspended=False)]


def clear_hold_patch(job: Job) -> Steps:
    """Return the patch that removes the hold annotation from a Job that a user resumed.

    Otherwise a later suspension by the user would look like waiting in the queue.
    """
    return [*_unchanged(job), {"op": "remove", "path": path_of(QUEUE_REASON)}]


def wait_reason_patch(job: Job, why: str) -> Steps:
    """Return the patch that writes why a held Job waits."""
    return [*_unchanged(job), *_noted(job, {QUEUE_REASON: why})]


def suspended(job: Job, by: str, ran: Mapping[int, Ran] | None = None) -> dict[str, Any]:
    """Return the patch that takes a Job out of the queue, in any state."""
    notes = {QUEUE_REASON: None, MOVED: None, SUSPENDED_BY: by, **_ran_notes(job, ran)}
    metadata = {"uid": job.uid, "annotations": notes}
    return {"metadata": metadata, "spec": _suspend_fields(job, is_suspended=True)}


def resumed(job: Job) -> dict[str, Any]:
    """Return the patch that puts a suspended Job back into the queue."""
    is_queued = (job.is_whole or job.is_array) and job.may_be_suspended
    notes = {QUEUE_REASON: "resumed" if is_queued else None, SUSPENDED_BY: None}
    change = _suspend_fields(job, is_suspended=is_queued)
    return {"metadata": {"uid": job.uid, "annotations": notes}, "spec": change}


def with_workers(job: Job, *, max_workers: int, min_workers: int) -> dict[str, Any]:
    """Return the patch of an elastic Job's worker bounds; Kubernetes adds or deletes pods."""
    notes = {MIN_WORKERS: str(min_workers)}
    numbers = {"completions": max_workers, "parallelism": max_workers}
    return {"metadata": {"uid": job.uid, "annotations": notes}, "spec": numbers}


def with_elements(job: Job, parallelism: int, *, now: float) -> Steps:
    """Return the patch by which an array's Job makes, or keeps, at most so many pods."""
    steps = unsuspend_patch(job, now=now) if job.is_queued else _unchanged(job)
    path = "/spec/parallelism"
    before = {"op": "test", "path": path, "value": job.parallelism}
    return [*steps, before, {"op": "replace", "path": path, "value": parallelism}]


def ended_for_good(job: Job, ran: Mapping[int, Ran]) -> dict[str, Any]:
    """Return the patch that notes which elements ran their time out; of a whole Job its 0."""
    count = job.completions if job.is_array else 1
    going = set(range(count)) - job.timed_out.union(ran)
    notes = {TIMED_OUT: arrays.text(arrays.without(((0, count),), going)), **_ran_notes(job, ran)}
    change: dict[str, Any] = {"metadata": {"uid": job.uid, "annotations": notes}}
    if job.spec is None:  # it has no rule for the condition of its pods
        policy = {"activeDeadlineSeconds": 1}
        change["spec"] = {"runPolicy": policy} if job.kind == PYTORCH_JOB else policy
    return change


def with_pauses(
    job: Job, indexes: Iterable[int], *, now: float, ran: Mapping[int, Ran] | None = None
) -> Steps:
    """Return the patch that stores the pauses of an array's elements."""
    times = {i: (*job.paused.get(i, ()), now) for i in indexes}
    path = path_of(PAUSED_ELEMENTS)
    before = {"op": "test", "path": path, "value": job.paused_text}
    changed = {"op": "replace", "path": path, "value": paused_text(job, times)}
    return [*_unchanged(job), before, changed, *_noted(job, _ran_notes(job, ran))]


def paused_text(job: Job, changed: Mapping[int, tuple[float, ...]]) -> str:
    """Serialize which elements of an array ran before; ended ones are dropped."""
    ended = job.done | job.deleted_elements
    pauses = {
        str(index): [round(at, 3) for at in times[-MOST_TIMES_OF_ELEMENT:]]
        for index, times in sorted({**job.paused, **changed}.items())
        if index not in ended
    }
    return json.dumps(pauses, separators=(",", ":"))


def _unchanged(job: Job) -> Steps:
    """Return JSON Patch tests that fail if the Job was suspended, resumed or replaced meanwhile."""
    tests: Steps = [{"op": "test", "path": "/metadata/uid", "value": job.uid}]
    if job.is_queued:
        tests.append({"op": "test", "path": path_of(QUEUE_REASON), "value": job.template.sentence})
    elif not job.has_suspend:
        return tests
    tests.append({"op": "test", "path": _suspend_path(job), "value": job.is_suspended})
    return tests


def _noted(job: Job, notes: Mapping[str, str]) -> Steps:
    first = [] if job.has_notes else [{"op": "add", "path": "/metadata/annotations", "value": {}}]
    added = [{"op": "add", "path": path_of(name), "value": text} for name, text in notes.items()]
    return [*first, *added]


def _suspend_steps(job: Job, *, is_suspended: bool) -> Steps:
    policy = {"op": "add", "path": "/spec/runPolicy", "value": {}}
    first = [] if job.has_policy else [policy]
    return [*first, {"op": "add", "path": _suspend_path(job), "value": is_suspended}]


def _suspend_fields(job: Job, *, is_suspended: bool) -> dict[str, Any]:
    change = {"suspend": is_suspended}
    return {"runPolicy": change} if job.kind == PYTORCH_JOB else change


def _suspend_path(job: Job) -> str:
    return "/spec/runPolicy/suspend" if job.kind == PYTORCH_JOB else "/spec/suspend"


def path_of(name: str) -> str:
    """Return the path of an annotation in a JSON patch."""
    return f"/metadata/annotations/{name.replace('/', '~1')}"


def _as_scaled(
    spec: WorkloadSpec | None, completions: int, metadata: Object
) -> WorkloadSpec | None:
    """Return the submitted spec with the Job's time limit and worker bounds, as they are now."""
    limit = figure(metadata.get("annotations", {}).get(MAX_RUNTIME, ""))
    if spec is not None and spec.max_runtime is not None and limit:
        spec = replace(spec, max_runtime=limit)
    if spec is None or not spec.elastic or spec.workers == 1:
        return spec
    changed = figure(metadata.get("annotations", {}).get(MIN_WORKERS, ""))
    most = min(max(2, completions), MOST_WORKERS)
    return replace(spec, workers=most, min_workers=min(changed or spec.min_workers, most))


def pod_from_template(
    found: Object, template: Object, kind: str = "Job", labels: Mapping[str, str] | None = None
) -> Pod:
    """Return a pod that a Job will create from a template.

    `labels` are additional labels; the template's win.
    """
    metadata = found["metadata"]
    labels = {**(labels or {}), **template.get("metadata", {}).get("labels", {})}
    annotations = template.get("metadata", {}).get("annotations", {})
    own = metadata.get("annotations", {})
    inherited = (PRIORITY, MAX_RUNTIME, SAVES, GUARANTEED)
    annotations = {key: own[key] for key in inherited if own.get(key)} | annotations
    owner = {"kind": kind, "controller": True, "name": metadata["name"], "uid": metadata["uid"]}
    described = {
        "uid": metadata["uid"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "creationTimestamp": metadata["creationTimestamp"],
        "labels": labels,
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    read = read_pod({"metadata": described, "spec": template["spec"]})
    return replace(read, sentence=metadata.get("annotations", {}).get(QUEUE_REASON, ""))


def _can_be_suspended(metadata: Object, spec: Object) -> bool:
    """Return True if no controller above the Job decides when it runs.

    Such controllers are JobSet and Kueue.
    """
    owners = [o["kind"] for o in metadata.get("ownerReferences", ()) if o.get("controller")]
    is_own = owners in ([], ["CronJob"]) and spec.get("managedBy", _CONTROLLER) == _CONTROLLER
    return is_own and not queued_by_kueue(metadata)


def queued_by_kueue(metadata: Object) -> bool:
    """Return True if Kueue manages `suspend`: it would undo our suspension at once."""
    return bool(metadata.get("labels", {}).get(_KUEUE))


def _outcome(status: Object) -> Object:
    """Return the condition with the outcome, also one that announces it; {} if there is none."""
    conditions = {c["type"]: c for c in status.get("conditions", ()) if c["status"] == "True"}
    for last, first in (("Complete", "SuccessCriteriaMet"), ("Failed", "FailureTarget")):
        if found := conditions.get(last) or conditions.get(first):
            return {**found, "type": last}
    return {}


def _paused_elements(annotations: Mapping[str, str]) -> Mapping[int, tuple[float, ...]]:
    try:
        stored = json.loads(annotations.get(PAUSED_ELEMENTS, "{}"))
        found = {int(index): tuple(map(float, times)) for index, times in stored.items()}
        return {
            index: tuple(at for at in times if 0 <= at < LAST)
            for index, times in found.items()
            if 0 <= index < MOST_WORKERS
        }
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        return {}  # foreign content


def ran_noted(annotations: Mapping[str, str]) -> Mapping[int, Ran]:
    """Return the noted running times, by index; {} if they are unreadable."""
    try:
        stored = json.loads(annotations.get(RAN, "{}"))
        found = {int(i): Ran(float(seconds), float(at)) for i, (seconds, at) in stored.items()}
    except (AttributeError, OverflowError, RecursionError, TypeError, ValueError):
        return {}  # foreign content
    return {i: ran for i, ran in found.items() if 0 <= ran.seconds < LAST and 0 <= ran.until < LAST}


def ran_text(job: Job, changed: Mapping[int, Ran]) -> str:
    """Serialize running times; elements that have ended need none."""
    entries = {
        str(i): [round(ran.seconds, 3), round(ran.until, 3)]
        for i, ran in sorted({**job.ran, **changed}.items())
        if not (job.is_array and i in job.done | job.deleted_elements)
    }
    return json.dumps(entries, separators=(",", ":"))


def timed_out_noted(annotations: Mapping[str, str]) -> frozenset[int]:
    """Return the elements that ran their time out; 0: a whole Job."""
    return _indexes_noted(annotations, TIMED_OUT)


def _indexes_noted(annotations: Mapping[str, str], name: str) -> frozenset[int]:
    try:
        return _indexes(annotations.get(name, ""))
    except ValueError:
        return frozenset()  # foreign content


def _indexes(text: str) -> frozenset[int]:
    """Parse the completed indexes.

    >>> sorted(_indexes("1,3-5"))
    [1, 3, 4, 5]
    """
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), MOST_WORKERS) + 1))
    return frozenset(found)


def times_noted(annotations: Mapping[str, str], name: str) -> tuple[float, ...]:
    """Return the times in an annotation, oldest first; () if it is unreadable."""
    try:
        times = [float(at) for at in json.loads(annotations.get(name, "[]"))]
        return tuple(at for at in times if 0 <= at < LAST)[-MOST_TIMES:]
    except (OverflowError, RecursionError, TypeError, ValueError):
        return ()  # foreign content


def _text(times: tuple[float, ...]) -> str:
    return json.dumps([round(at, 3) for at in times[-MOST_TIMES:]])
