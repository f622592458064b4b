"""History of a workload, from the Events of its Job or pod.

Kubernetes deletes Events after an hour by default. The submission and the outcome stay: they are
read from the object itself.
"""

from collections.abc import Mapping, Sequence
from http import HTTPStatus

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.objects.amounts import when
from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.states.lifecycle import request_text
from runai.hub_service.model.records import HistoryEvent, WorkloadRecord

_KINDS: Mapping[str, str] = {
    "Deleted": "stopping",
    "Killed": "exited",
    "Moved": "stopping",
    "Preempted": "stopping",
    "Queued": "queued",
    "Resized": "resized",
    "Resumed": "running",
    "Scheduled": "running",
    "Suspended": "suspended",
    "TimedOut": "stopping",
    "Waiting": "waiting",
}


async def read(
    api: Api, record: WorkloadRecord, subjects: Sequence[Job | Pod]
) -> list[HistoryEvent]:
    """Return the history of a workload with these objects, oldest first.

    Outside the namespace of the notebooks we have no right to read Events, our own included.

    Raises:
        ApiError: the API server does not answer.
    """
    # Event times are whole seconds, so resourceVersions give the order.
    events = [event for subject in subjects for event in await _events(api, subject)]
    ours = sorted(
        (e for e in events if e.get("source", {}).get("component") == SCHEDULER),
        key=lambda event: int(event["metadata"]["resourceVersion"]),
    )
    by = f"submitted by {record.spec.user}" if record.spec.user else "made"
    first = HistoryEvent(record.submitted, "queued", f"{by}: {request_text(record.spec)}")
    last = []
    if record.state.finished and record.finished is not None:
        text = record.reason.text if record.reason else record.state.value
        last = [HistoryEvent(record.finished, record.state.value, text)]
    return [first, *_without_repeats([_event(event) for event in ours]), *last]


async def _events(api: Api, subject: Job | Pod) -> Sequence[Object]:
    path = f"/api/v1/namespaces/{subject.namespace}/events"
    try:
        found = await api.get(path, fieldSelector=f"involvedObject.uid={subject.uid}")
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return ()
    items: Sequence[Object] = found["items"]
    return items


def _event(event: Object) -> HistoryEvent:
    at = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
    return HistoryEvent(when(at), _KINDS.get(event["reason"], "warning"), event["message"])


def _without_repeats(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """Keep only the first sentence of each wait: they change every few seconds."""
    return [
        event
        for before, event in zip([None, *events], events, strict=False)
        if before is None or (before.kind, event.kind) != ("waiting", "waiting")
    ]
