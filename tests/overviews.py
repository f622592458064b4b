"""Overviews as the service sends them, one line for each relevant object."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from runai.hub_service.wire.device_schemas import DeviceView, NodeView
from runai.hub_service.wire.schemas import MeasuredView, Overview, ProjectView, WorkloadView

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def workload(name: str, state: str = "running", **fields: Any) -> WorkloadView:
    """Make a job of bob's in project vision that requests one GPU; measurements stand flat."""
    measured = {name: fields.pop(name) for name in MeasuredView.model_fields if name in fields}
    project = fields.pop("project", "vision")
    defaults = {
        "id": f"{project}/{name}",
        "project": project,
        "name": name,
        "user": "bob",
        "kind": "job",
        "state": state,
        "preemptible": True,
        "priority": 50,
        "gpus": 1,
        "submitted": NOON,
        "manageable": True,
        "version": "1",
        "measured": measured,
    }
    return WorkloadView.model_validate({**defaults, **fields})


def project(name: str, **fields: Any) -> ProjectView:
    """Make a project of quota 2.5."""
    return ProjectView.model_validate({"name": name, "quota": 2.5, "build_quota": 2.5, **fields})


def overview(
    *workloads: WorkloadView, projects: tuple[ProjectView, ...] = (), simulated: bool = True
) -> Overview:
    """Make an overview of one node with one device."""
    device = DeviceView(device=0, uuid="GPU-0", name="GPU", memory_mib=1024, simulated=simulated)
    node = NodeView(name="box", devices=[device])
    return Overview(
        at=NOON, projects=list(projects), workloads=list(workloads), nodes=[node], notes=[]
    )
