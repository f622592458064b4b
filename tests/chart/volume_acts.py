"""What the service needs its rights on volumes, their claims and their classes for.

Called by test_rights beside `acts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from chart.acts import SCHEDULER, Act, Stage
from chart.rights import Right
from runai.hub_service.clusters.kubernetes.storage import (
    VOLUMES,
    Claim,
    Volume,
    read_claim,
    read_volume,
)
from runai.hub_service.scheduler.model import Start

__all__ = ["VOLUME_ACTS"]


async def sees_a_claim(stage: Stage) -> None:
    await stage.cluster.observe()
    stage.lab.namespace.claim("new")
    name = f"{stage.lab.namespace.name}/new"
    await stage.until(lambda: name in stage.cluster._claims.objects, "it sees the claim")


async def sees_a_volume(stage: Stage) -> None:
    await stage.cluster.observe()
    name = f"{stage.node}-disk"
    stage.lab.volume(name, stage.node, of_class="local")
    await stage.until(lambda: name in stage.cluster._volumes.objects, "it sees the volume")


async def sees_a_class(stage: Stage) -> None:
    await stage.cluster.observe()
    name = f"{stage.node}-class"
    stage.lab.storage_class(name)
    await stage.until(lambda: name in stage.cluster._classes.objects, "it sees the class")


async def has_a_volume_made(stage: Stage) -> None:
    claim, start = await _claimed(stage)
    await stage.acting().provide(start, claim, None)
    assert read_claim(stage.lab.plane.request("GET", claim.path)).node == stage.node


async def takes_a_volume(stage: Stage) -> None:
    (claim, start), name = await _claimed(stage), f"{stage.node}-disk"
    stage.lab.volume(name, stage.node, of_class="local")

    def disk() -> Volume:
        return read_volume(stage.lab.plane.request("GET", f"{VOLUMES}/{name}"))

    while disk().claim != claim.uid:  # Kubernetes' controller may write on it in between
        await stage.acting().provide(start, claim, disk())


async def _claimed(stage: Stage) -> tuple[Claim, Start]:
    stage.lab.namespace.claim("home", of_class="local")
    path = f"/api/v1/namespaces/{stage.lab.namespace.name}/persistentvolumeclaims/home"
    claim = read_claim(stage.lab.plane.request("GET", path))
    return claim, Start(workload="w", worker="w-0", node=stage.node)


VOLUME_ACTS: Mapping[Right, Act] = {
    **{Right(SCHEDULER, "persistentvolumeclaims", v): sees_a_claim for v in ("list", "watch")},
    **{Right(SCHEDULER, "persistentvolumes", v): sees_a_volume for v in ("list", "watch")},
    **{Right(SCHEDULER, "storageclasses", v): sees_a_class for v in ("list", "watch")},
    Right(SCHEDULER, "persistentvolumeclaims", "patch"): has_a_volume_made,
    Right(SCHEDULER, "persistentvolumes", "patch"): takes_a_volume,
}
