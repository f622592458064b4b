"""Jobs as the API server keeps them, and how one is kept waiting without pods.

A Job whose workers wait is *held*: suspended by us, with the annotation that says so, its place in
the queue kept. Eviction would pause it too, but after each one the Job controller lets it wait up
to ten minutes before it makes the pod again; a suspended Job it starts at once. A Job that somebody
else suspended is not in the queue. Parses Jobs, and writes the changes of them. Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runai.hub_service.clusters.kubernetes.amounts import when
from runai.hub_service.clusters.kubernetes.api import Object
from runai.hub_service.clusters.kubernetes.making import read_spec
from runai.hub_service.clusters.kubernetes.objects import HELD, PRIORITY, Pod, read_pod
from runai.hub_service.clusters.records import WorkloadSpec

__all__ = [
    "PAUSES",
    "STARTS",
    "Job",
    "Steps",
    "held",
    "let_go",
    "read_job",
    "resumed",
    "suspended",
    "told",
]

PAUSES = "runai/pauses"
"""Annotation: when the scheduler stopped it, as a JSON list of Unix seconds."""
SUSPENDED_BY = "runai/suspended-by"
STARTS = "runai/starts"
"""Annotation: when it was let go, so."""
MOST_TIMES = 1000
Steps = list[dict[str, Any]]
"""A change as JSON Patch."""
_CONTROLLER = "kubernetes.io/job-controller"


@dataclass(frozen=True, slots=True)
class Job:
    """What a batch Job asks for and has come to. Times in Unix seconds."""

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
    """What each of its workers asks for: a pod that is not made yet."""
    is_held: bool = False
    """Suspended by the scheduler: it waits in the queue."""
    may_be_held: bool = True
    """Whether nobody else decides about its being suspended."""
    outcome: str = ""
    """`Complete`, `Failed`, or "" while it is neither, and will not be."""
    why: str = ""
    """What Kubernetes says of its outcome."""
    finished: float | None = None
    deleted: float | None = None
    failed: int = 0
    completed: frozenset[int] = frozenset()
    """Indexes of an Indexed Job that are done."""
    starts: tuple[float, ...] = ()
    pauses: tuple[float, ...] = ()
    spec: WorkloadSpec | None = None
    """What was submitted, if it was by us."""
    suspended_by: str = ""
    has_notes: bool = field(default=True, compare=False)
    has_suspend: bool = field(default=True, compare=False)
    """Whether the fields are there at all, as changes of them must know."""

    @property
    def path(self) -> str:
        """Return where the API server has it."""
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.name}"

    @property
    def is_finished(self) -> bool:
        """Tell whether it will make no pods any more."""
        return bool(self.outcome)

    @property
    def runs_at_once(self) -> bool:
        """Tell whether it is an Indexed Job of several workers that are all up together."""
        return self.is_indexed and self.parallelism >= self.completions > 1

    @property
    def is_whole(self) -> bool:
        """Tell whether it is one workload, not one of each of its pods."""
        return self.parallelism <= 1 or self.runs_at_once or self.template.is_gang

    @property
    def minimum(self) -> int:
        """Return how many workers must be up together, of those that are not done."""
        return max(1, min(self.parallelism, self.completions - self.succeeded))


def read_job(found: Object) -> Job:
    """Parse a Job."""
    metadata, spec, status = found["metadata"], found["spec"], found.get("status", {})
    annotations = metadata.get("annotations", {})
    parallelism = spec.get("parallelism", 1)
    is_suspended = bool(spec.get("suspend"))
    outcome = _outcome(status)
    return Job(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=when(metadata["creationTimestamp"]),
        completions=spec.get("completions", parallelism),
        parallelism=parallelism,
        is_indexed=spec.get("completionMode") == "Indexed",
        is_suspended=is_suspended,
        succeeded=status.get("succeeded", 0),
        template=_template(found),
        is_held=is_suspended and HELD in annotations,
        may_be_held=_may_be_held(metadata, spec),
        outcome=outcome.get("type", ""),
        why=outcome.get("message", ""),
        finished=when(outcome["lastTransitionTime"]) if outcome else None,
        deleted=when(deleted) if (deleted := metadata.get("deletionTimestamp")) else None,
        failed=status.get("failed", 0),
        completed=_indexes(status.get("completedIndexes", "")),
        starts=_times(annotations, STARTS),
        pauses=_times(annotations, PAUSES),
        spec=read_spec(annotations),
        suspended_by=annotations.get(SUSPENDED_BY, ""),
        has_notes="annotations" in metadata,
        has_suspend="suspend" in spec,
    )


def held(job: Job, *, now: float, why: str, priority: int) -> Steps:
    """Return the change that pauses a Job: its pods are stopped, and it waits in the queue."""
    notes = {HELD: why, PAUSES: _text((*job.pauses, now)), PRIORITY: str(priority)}
    return [*_unchanged(job), *_noted(job, notes), _suspend(is_wanted=True)]


def let_go(job: Job, *, now: float) -> Steps:
    """Return the change that lets a held Job make its pods."""
    notes = {STARTS: _text((*job.starts, now))}
    gone = {"op": "remove", "path": _note(HELD)}
    return [*_unchanged(job), *_noted(job, notes), gone, _suspend(is_wanted=False)]


def told(job: Job, why: str) -> Steps:
    """Return the change that says why a held Job waits."""
    return [*_unchanged(job), *_noted(job, {HELD: why})]


def suspended(by: str) -> dict[str, Any]:
    """Return the change that takes a Job out of the queue, whatever became of it meanwhile."""
    notes = {HELD: None, SUSPENDED_BY: by}
    return {"metadata": {"annotations": notes}, "spec": {"suspend": True}}


def resumed(job: Job) -> dict[str, Any]:
    """Return the change that puts a suspended Job back into the queue."""
    is_held = job.is_whole and job.may_be_held
    notes = {HELD: "resumed" if is_held else None, SUSPENDED_BY: None}
    return {"metadata": {"uid": job.uid, "annotations": notes}, "spec": {"suspend": is_held}}


def _unchanged(job: Job) -> Steps:
    """Test that nobody has suspended, resumed or replaced it: who did is not overruled."""
    tests: Steps = [{"op": "test", "path": "/metadata/uid", "value": job.uid}]
    if job.is_held:
        tests.append({"op": "test", "path": _note(HELD), "value": job.template.sentence})
    elif not job.has_suspend:
        return tests
    tests.append({"op": "test", "path": "/spec/suspend", "value": job.is_suspended})
    return tests


def _noted(job: Job, notes: Mapping[str, str]) -> Steps:
    first = [] if job.has_notes else [{"op": "add", "path": "/metadata/annotations", "value": {}}]
    added = [{"op": "add", "path": _note(name), "value": text} for name, text in notes.items()]
    return [*first, *added]


def _suspend(*, is_wanted: bool) -> dict[str, Any]:
    return {"op": "add", "path": "/spec/suspend", "value": is_wanted}


def _note(name: str) -> str:
    return f"/metadata/annotations/{name.replace('/', '~1')}"


def _template(found: Object) -> Pod:
    metadata, template = found["metadata"], found["spec"]["template"]
    labels = template.get("metadata", {}).get("labels", {})
    annotations = template.get("metadata", {}).get("annotations", {})
    if priority := metadata.get("annotations", {}).get(PRIORITY):
        annotations = {PRIORITY: priority} | annotations
    owner = {"kind": "Job", "controller": True, "name": metadata["name"], "uid": metadata["uid"]}
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
    return replace(read, sentence=metadata.get("annotations", {}).get(HELD, ""))


def _may_be_held(metadata: Object, spec: Object) -> bool:
    """Tell whether nothing above it, such as a JobSet or Kueue, says when it runs."""
    owners = [o["kind"] for o in metadata.get("ownerReferences", ()) if o.get("controller")]
    return owners in ([], ["CronJob"]) and spec.get("managedBy", _CONTROLLER) == _CONTROLLER


def _outcome(status: Object) -> Object:
    """Return the condition that says how it ended, by Kubernetes' last word on it, or nothing."""
    said = {c["type"]: c for c in status.get("conditions", ()) if c["status"] == "True"}
    for last, first in (("Complete", "SuccessCriteriaMet"), ("Failed", "FailureTarget")):
        if found := said.get(last) or said.get(first):
            return {**found, "type": last}
    return {}


def _indexes(text: str) -> frozenset[int]:
    """Read which indexes are done.

    >>> sorted(_indexes("1,3-5"))
    [1, 3, 4, 5]
    """
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _times(annotations: Mapping[str, str], name: str) -> tuple[float, ...]:
    try:
        return tuple(float(at) for at in json.loads(annotations.get(name, "[]")))
    except (TypeError, ValueError):
        return ()  # somebody wrote something else there


def _text(times: tuple[float, ...]) -> str:
    return json.dumps([round(at, 3) for at in times[-MOST_TIMES:]])
