"""Fixtures that build small traces and clusters for the simulation.

jobs      rows from tuples: jobs(("a1", "a", 0, 2, 100), ...) - job, project, submit, GPUs, duration
setting   a cluster: setting(nodes=2, gpus=1, quotas={"a": 1, "b": 1}, until=200)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from runai.hub_service.scheduler.model.quantity import Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Node, Policy, Project
from runai.hub_service.simulation.engine import Setting
from runai.hub_service.simulation.traces import TraceRow


@pytest.fixture
def jobs() -> Callable[..., list[TraceRow]]:
    def rows(*values: tuple[str, str, int, float, int], **columns: Any) -> list[TraceRow]:
        return [
            TraceRow(
                job=job,
                project=project,
                submit_s=submit,
                gpus=round(1000 * gpus),
                duration_s=duration,
                **columns,
            )
            for job, project, submit, gpus, duration in values
        ]

    return rows


@pytest.fixture
def setting() -> Callable[..., Setting]:
    def build(
        nodes: int = 1,
        gpus: int = 1,
        quotas: Mapping[str, int] = {"a": 1},
        policy: Policy | None = None,
        project: Mapping[str, Any] | None = None,
        **measured: int,
    ) -> Setting:
        return Setting(
            nodes=[
                Node(name=f"node-{n}", devices=gpus, device_memory_mib=Mib(81_920))
                for n in range(nodes)
            ],
            projects=[
                Project(name=name, quota=MilliGpu(1000 * quota), **(project or {}))
                for name, quota in quotas.items()
            ],
            policy=policy or Policy(),
            **measured,
        )

    return build
