"""Resolution of earlier calls before the next decision.

A pod is read again if a call about it got no answer. A pod whose eviction failed is counted by its
Job again. A Job that its user resumed, while the scheduler had suspended it, loses that mark.
"""

from collections.abc import Callable, Iterable
from functools import partial

from runai.hub_service.clusters.kubernetes.actions.decision_executor import at_once
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.pod_conditions import pod_path
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    SCHEDULER,
    Pod,
    read_pod,
    restore_finalizer_patch,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import Job, clear_hold_patch
from runai.hub_service.clusters.kubernetes.snapshot.assumed_state import AssumedState, Bound
from runai.hub_service.wire.errors import Unavailable


async def resolve(api: Api, assumed: AssumedState, clock: Callable[[], float]) -> None:
    """Read the pods for which the outcome of our call is unknown.

    Raises:
        Unavailable: the API server does not answer; no decision may be made meanwhile.
    """
    for uid, pod in list(assumed.doubtful.items()):
        try:
            found = read_pod(await api.get(pod_path(pod)))
        except ApiError as error:
            if error.is_unanswered:
                raise Unavailable(
                    f"Kubernetes does not say what became of pod {pod.key}: {error.message}.",
                    hint="It is asked again in a moment.",
                ) from error
        else:
            if found.uid == uid and found.node:
                assumed.bound[uid] = Bound(found.node, found.bound or clock(), found.grant)
            if found.uid == uid and found.deleted is not None:
                assumed.evicted[uid] = clock()
        del assumed.doubtful[uid]


async def restore_finalizers(api: Api, pods: Iterable[Pod]) -> bool:
    """Restore the finalizer of pods that stay; return True if some writes failed.

    Their Jobs then count them again. Pods that have ended meanwhile are included: they count as
    they ended.
    """
    left: list[Pod] = []

    async def restore_finalizer(pod: Pod) -> None:
        try:
            await api.patch(
                pod_path(pod, "status"), restore_finalizer_patch(pod.uid), strategic=True
            )
        except ApiError as error:
            # Deleted, replaced, or evicted since: the informer will show it.
            if error.status not in (404, 409, 422):
                left.append(pod)

    stay = [pod for pod in pods if pod.counting == "left out" and pod.deleted is None]
    await at_once(partial(restore_finalizer, pod) for pod in stay)
    return bool(left)


async def clear_holds(api: Api, jobs: Iterable[Job], apply: Callable[[Object], None]) -> bool:
    """Remove the hold annotation from resumed Jobs; return True if some writes failed.

    `apply` receives each changed Job.
    """
    left: list[Job] = []

    async def clear_hold(job: Job) -> None:
        try:
            apply(await api.change(job.path, clear_hold_patch(job)))
        except ApiError as error:
            # Deleted, or changed once more: the informer will show it.
            if error.status not in (404, 409, 422):
                left.append(job)

    resumed = [job for job in jobs if job.is_freed and job.template.scheduler == SCHEDULER]
    await at_once(partial(clear_hold, job) for job in resumed)
    return bool(left)
