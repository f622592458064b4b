"""Upkeep of job arrays: end the pods of deleted elements, and let failed ones be tried again.

An element that its user deleted ends for good by its pod: a condition of ours makes it a failure
that the Job controller does not try again (`podFailurePolicy`). One without a pod gets it last.
"""

from collections.abc import Callable, Collection
from functools import partial
from http import HTTPStatus

from runai.hub_service.clusters.kubernetes.actions.decision_executor import ApiCall, at_once
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.pod_conditions import final_status, pod_path
from runai.hub_service.clusters.kubernetes.objects.array_elements import ArrayJob
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import with_elements

CHANGED = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


async def reconcile_arrays(
    api: Api, arrays: Collection[ArrayJob], now: float, apply: Callable[[Object], None]
) -> bool:
    """Bring arrays' pods in line with what users deleted; return True if some writes failed.

    `apply` receives each changed Job.
    """
    failed = False

    async def end(pod: Pod) -> None:
        await api.patch(pod_path(pod, "status"), final_status(pod), strategic=True)
        if pod.node:
            await api.delete(pod_path(pod), {"preconditions": {"uid": pod.uid}})

    async def enlarge(array: ArrayJob) -> None:
        apply(
            await api.change(
                array.job.path, with_elements(array.job, array.min_parallelism, now=now)
            )
        )

    async def attempt(call: ApiCall) -> None:
        nonlocal failed
        try:
            await call()
        except ApiError as error:
            # Changed meanwhile: the informer will show it.
            failed = failed or error.status not in CHANGED

    calls: list[ApiCall] = []
    for array in arrays:
        deleted, job = array.job.deleted_elements, array.job
        if job.deleted is not None:
            continue  # all of it goes
        if deleted:
            terminating = [pod for pod in array.unfinished if pod.index in deleted]
            calls += [partial(end, pod) for pod in terminating if pod.deleted is None]
        if array.min_parallelism > job.parallelism and (job.is_queued or not job.is_suspended):
            calls.append(partial(enlarge, array))
    await at_once(partial(attempt, call) for call in calls)
    return failed
