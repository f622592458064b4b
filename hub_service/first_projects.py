"""What a new platform begins with when nobody has said anything: two projects that halve the GPUs.

Makes the story of the README playable at once. The members are the accounts that `runai up` makes.
"""

from runai.hub_service.clusters.records import ProjectSpec
from runai.hub_service.scheduler.quantity import MilliGpu


def first_projects(devices: int, *, with_members: bool = True) -> list[ProjectSpec]:
    """Return the projects for so many GPUs; real accounts are for an admin to add.

    >>> [(p.name, p.quota) for p in first_projects(5)]
    [('vision', 2500), ('nlp', 2500)]
    """
    half = MilliGpu(1000 * devices // 2)
    members = {"vision": ("bob",), "nlp": ("patty",)}
    return [
        ProjectSpec(name, quota=half, members=who if with_members else ())
        for name, who in members.items()
    ]
