"""Notes on Jobs with pods that were killed at the end of a grace period: a save may be cut."""

import json
from collections import deque
from collections.abc import Callable, Mapping

from runai.hub_service.clusters.kubernetes.actions.array_reconciler import CHANGED
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.objects.core_objects import KILLED, Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.model.records import killed_text

IS_NEWS_S = 300.0
"""Older pods were noted by the scheduler that led then."""


class KilledPods:
    """Notes on killed pods of submitted Jobs, one for each pod."""

    def __init__(self, api: Api, events: EventQueue, found: deque[Pod]) -> None:
        """Begin with no pod noted; the informer appends to `found`."""
        self._api = api
        self._events = events
        self._found = found
        self._noted: deque[str] = deque(maxlen=found.maxlen)

    async def note(
        self, jobs: Mapping[str, Job], now: float, apply: Callable[[Object], None]
    ) -> bool:
        """Note the killed pods found since the last call; return True if a write failed.

        `apply` receives each changed Job. Elements of arrays are left out.
        """
        failed = []
        while self._found:
            pod = self._found.popleft()
            job = jobs.get(pod.owner.uid) if pod.owner is not None else None
            if job is None or job.spec is None or job.is_array or pod.uid in self._noted:
                continue
            at = pod.ended or now
            if at < now - IS_NEWS_S:
                continue
            notes = {KILLED: json.dumps([at])}
            try:
                patch = {"metadata": {"uid": job.uid, "annotations": notes}}
                apply(await self._api.patch(job.path, patch))
            except ApiError as error:
                if error.status not in CHANGED:  # else the Job is gone
                    failed.append(pod)
                continue
            self._noted.append(pod.uid)
            worker = f"worker {pod.index} " if job.spec.workers > 1 else ""
            self._events.enqueue(
                job, "Killed", f"{worker}was {killed_text(job.spec)}", is_warning=True
            )
        self._found.extend(failed)
        return bool(failed)
