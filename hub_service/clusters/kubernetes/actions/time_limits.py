"""End of Jobs and pods that ran their time out; array elements end one by one.

The end is noted on the Job first, so that it is carried out after a restart, too. A condition of
ours makes a pod's end a failure that its Job does not try again (`podFailurePolicy`). A Job that
was not submitted through us has no such rule: its deadline ends it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial

from runai.hub_service.clusters.kubernetes.actions.array_reconciler import CHANGED
from runai.hub_service.clusters.kubernetes.actions.decision_executor import ApiCall, at_once
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.events.pod_conditions import final_status, pod_path
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.job_manifest import TIMED_OUT
from runai.hub_service.clusters.kubernetes.objects.jobs import Job, Ran, ended_for_good
from runai.hub_service.clusters.kubernetes.objects.run_time import TimeLimited
from runai.hub_service.wire.amounts import clock_text


async def end_timed_out(
    api: Api,
    limited: Collection[TimeLimited],
    events: EventQueue,
    now: float,
    apply: Callable[[Object], None],
) -> tuple[set[str], bool]:
    """End what has used up its time; return the ended pods' UIDs, and whether a write failed.

    `apply` receives each changed Job.
    """
    failed, ended_uids = False, set[str]()
    due: dict[str, list[TimeLimited]] = defaultdict(list)  # by the UID of the Job or pod
    for item in limited:
        if item.ends_at is not None and item.ends_at <= now:
            due[item.subject.uid].append(item)

    async def end(pod: Pod) -> None:
        if pod.owner is not None:
            await api.patch(pod_path(pod, "status"), final_status(pod, TIMED_OUT), strategic=True)
        await api.delete(pod_path(pod), {"preconditions": {"uid": pod.uid}})
        ended_uids.add(pod.uid)

    async def end_all(items: Sequence[TimeLimited]) -> None:
        nonlocal failed
        try:
            subject = items[0].subject
            job = subject if isinstance(subject, Job) else None
            not_noted = [item for item in items if not item.is_over]
            for item in not_noted:
                text = f"ran {clock_text(item.limit)}, its time limit: it ends for good"
                event_subject = subject if job is not None and not job.is_array else item.up[0]
                events.enqueue(event_subject, "TimedOut", text, is_ending=True)
            if job is not None and not_noted:
                ran = {item.element: Ran(item.seconds_at(now), now) for item in not_noted}
                apply(await api.patch(job.path, ended_for_good(job, ran)))
            if job is not None and job.spec is None:
                return  # its deadline ends its pods
            for item in items:
                for pod in item.up:
                    await end(pod)
        except ApiError as error:
            # Changed meanwhile: the informer will show it.
            failed = failed or error.status not in CHANGED

    calls: list[ApiCall] = [partial(end_all, items) for items in due.values()]
    await at_once(calls)
    return ended_uids, failed
