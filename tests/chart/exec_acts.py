"""What the service needs its rights on pods' programs for, where the chart gives them (jobs.exec).

Called by test_rights beside `acts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from chart.acts import JOBS, Act, Stage
from chart.rights import Right
from runai.hub_service.clusters.base import Ended
from runai.hub_service.clusters.kubernetes.executing import PodPrograms

__all__ = ["EXEC_ACTS"]


async def runs_a_program(stage: Stage) -> None:
    """Get as far as the node, which runs none."""
    stage.pod("one", nodeName=stage.node)
    await stage.cluster.observe()
    workload = f"{stage.project}/{stage.lab.namespace.name}.one"
    key = f"{stage.lab.namespace.name}/one"

    def is_up() -> bool:
        found = stage.cluster._pods.objects.get(key)
        return found is not None and found.is_up

    await stage.until(is_up, "its pod runs")
    programs = PodPrograms(stage.api, stage.cluster.pods_of)
    pieces = await programs.execute(workload, 0, ["true"], b"")
    (ended,) = [piece async for piece in pieces]
    assert isinstance(ended, Ended)
    assert ended.why


EXEC_ACTS: Mapping[Right, Act] = {
    Right(JOBS, "pods/exec", verb): runs_a_program for verb in ("get", "create")
}
