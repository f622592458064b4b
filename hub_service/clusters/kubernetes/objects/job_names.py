"""What the Job of a workload is called, where its name may be another one's already.

`PROJECT-NAME` as a rule. Of `lab/secret-job-1` and `lab-secret/job-1` that is the same, and nobody
may learn from a refusal what another project has, or keep a name from it: the later one's Job gets
a name that none has by that rule. Workloads are found by what is written on their Jobs, never by
these names. Called by `cluster` and `making`.
"""

import hashlib
from collections.abc import Callable

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object, asking, taken
from runai.hub_service.model.records import WorkloadSpec

_READABLE = 40


def job_name(spec: WorkloadSpec) -> str:
    """Return what its Job is called as a rule."""
    return f"{spec.project}-{spec.name}"


def other_name(spec: WorkloadSpec) -> str:
    """Return what its Job is called where that is another workload's.

    Without a hyphen, which all others have: nobody can submit something that takes it.
    """
    readable = job_name(spec).replace("-", "")[:_READABLE]
    return f"{readable}x{hashlib.sha256(spec.id.encode()).hexdigest()[:12]}"


async def made_under_a_free_name(
    api: Api,
    jobs: str,
    spec: WorkloadSpec,
    body: Callable[[str], Object],
    whose: Callable[[Object], str],
) -> Object:
    """Make a workload's Job in the collection `jobs`, and return it as it is there.

    `body` writes it under a name, `whose` says which workload one that is there is.

    Raises:
        Conflict: the workload has one already.
    """
    for name in (job_name(spec), other_name(spec)):
        with asking():
            try:
                return await api.create(jobs, body(name))
            except ApiError as error:
                if error.status != 409:
                    raise
            # As a list, which we may read.
            there = await api.get(jobs, fieldSelector=f"metadata.name={name}")
        if spec.id in map(whose, there["items"]):
            break
    raise taken(spec, "")
