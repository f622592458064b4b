"""Names of workloads' Jobs, including names that another workload already uses.

The usual name is `PROJECT-NAME`. For `lab/secret-job-1` and `lab-secret/job-1` it is the same. A
refusal would reveal the other project's workload, or block the name. So the later workload's Job
gets a name that the usual rule cannot produce. Workloads are found by the labels and annotations of
their Jobs, never by these names.
"""

import hashlib
from collections.abc import Callable

from runai.hub_service.clusters.kubernetes.client.api import (
    Api,
    ApiError,
    Object,
    translate_api_errors,
)
from runai.hub_service.clusters.states.user_actions import refusal_of_used_name
from runai.hub_service.model.records import WorkloadSpec

_READABLE = 40


def job_name(spec: WorkloadSpec) -> str:
    """Return the usual name of a workload's Job."""
    return f"{spec.project}-{spec.name}"


def other_name(spec: WorkloadSpec) -> str:
    """Return the Job name to use if the usual one belongs to another workload.

    Usual names contain a hyphen and this one does not, so no submission can take it.
    """
    readable = job_name(spec).replace("-", "")[:_READABLE]
    return f"{readable}x{hashlib.sha256(spec.id.encode()).hexdigest()[:12]}"


async def create_under_free_name(
    api: Api,
    jobs: str,
    spec: WorkloadSpec,
    body: Callable[[str], Object],
    workload_of: Callable[[Object], str],
) -> Object:
    """Create a workload's Job in the collection `jobs`, and return it.

    `body` returns the manifest for a name; `workload_of` returns the workload of an existing Job.

    Raises:
        Conflict: the workload already has a Job.
    """
    for name in (job_name(spec), other_name(spec)):
        with translate_api_errors():
            try:
                return await api.create(jobs, body(name))
            except ApiError as error:
                if error.status != 409:
                    raise
            # A list request: we have no right to `get` Jobs.
            there = await api.get(jobs, fieldSelector=f"metadata.name={name}")
        if spec.id in map(workload_of, there["items"]):
            break
    raise refusal_of_used_name(spec.id)
