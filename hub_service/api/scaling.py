"""Change how many workers an elastic job may have: what its project allows.

Called by the routes of workloads.
"""

from runai.hub_service.api.permissions import Actor
from runai.hub_service.api.platform import Platform
from runai.hub_service.api.schemas import ScaleRequest
from runai.hub_service.clusters.records import WorkloadRecord
from runai.hub_service.errors import InvalidRequest
from runai.hub_service.scheduler.quantity import MilliGpu
from runai.hub_service.submission import check_limit


async def scale(
    on: Platform, caller: Actor, record: WorkloadRecord, asked: ScaleRequest
) -> WorkloadRecord:
    """Do it.

    Raises:
        Conflict, InvalidRequest: as the cluster says, or its project could never give the least.
    """
    if asked.workers is None and asked.min_workers is None:
        raise InvalidRequest(
            "No number of workers is given.", hint="Give workers, min_workers or both."
        )
    if asked.min_workers is not None:
        projects = await on.project_specs()
        needed = MilliGpu(record.spec.gpus * asked.min_workers)
        if (project := projects.get(record.spec.project)) is not None:
            check_limit(needed, project, projects)
    return await on.cluster.scale(
        record.id, workers=asked.workers, min_workers=asked.min_workers, by=caller.name
    )
