"""Conversion of projects to custom resources, and back."""

from __future__ import annotations

import pytest

from runai.hub_service.clusters.kubernetes.objects.project_resource import (
    for_core,
    manifest,
    misplaced,
    read_project,
)
from runai.hub_service.model.records import ProjectRecord, ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

FULL = ProjectSpec(
    "vision",
    parent="lab",
    quota=MilliGpu(2500),
    build_quota=MilliGpu(1000),
    limit=MilliGpu(4000),
    weight=3,
    priority=110,
    never_lent=MilliGpu(500),
    min_runtime=600,
    node_types_build=("l4",),
    node_types_train=(),
    members=("ana", "bob"),
    groups=("lab",),
    admins=("ana",),
    admin_groups=("chairs",),
)


def record(name: str, parent: str | None = None, created: float = 1.0) -> ProjectRecord:
    return ProjectRecord(ProjectSpec(name, parent=parent, quota=MilliGpu(1000)), created)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(FULL, id="all fields"),
        pytest.param(ProjectSpec("vision"), id="defaults"),
        pytest.param(ProjectSpec("vision", quota=None), id="unlimited quota"),
        pytest.param(
            ProjectSpec(
                "vision",
                quota=None,
                quota_by_type={"h100": MilliGpu(2000), "l4": None, "*": MilliGpu(500)},
            ),
            id="quota by GPU type",
        ),
    ],
)
def test_project_round_trips_through_its_custom_resource(spec):
    written = manifest(spec)
    written["metadata"]["creationTimestamp"] = "1970-01-01T00:00:07Z"

    assert read_project(written) == ProjectRecord(spec, 7.0)


def test_project_with_an_unknown_parent_is_misplaced():
    assert misplaced([record("vision", "lab")]) == {"vision": "there is no project lab, its parent"}


def test_project_in_a_parent_cycle_is_misplaced_but_its_children_are_not():
    circle = [record("a", "b"), record("b", "a"), record("below", "a")]

    assert misplaced(circle) == {
        "a": "it is its own ancestor: a < b < a",
        "b": "it is its own ancestor: b < a < b",
    }


def test_project_more_than_twenty_levels_deep_is_misplaced():
    chain = [record("c0", None), *(record(f"c{n}", f"c{n - 1}") for n in range(1, 21))]

    assert misplaced(chain) == {"c20": "it is below 20 other projects: at most 20 levels"}


def test_misplaced_project_is_a_root_without_quota():
    records = [record("vision", "lab"), record("below", "vision", created=2.0)]

    projects = {p.name: p for p in for_core(records, misplaced(records))}

    assert (projects["vision"].parent, projects["below"].parent) == (None, "vision")
    assert projects["below"].quota == MilliGpu(1000)
    assert projects["vision"].quota != MilliGpu(1000)
