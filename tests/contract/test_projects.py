"""Projects are stored as a tree; the snapshot has the projects and the nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs import NODE
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import LeftOut
from runai.hub_service.wire.errors import Conflict, Forbidden, InvalidRequest


async def test_stored_projects_reach_the_snapshot(lab):
    await lab.cluster.put_project(ProjectSpec("lab", limit=MilliGpu(4000)))
    created = await lab.cluster.put_project(ProjectSpec("vision", parent="lab"))
    await lab.pass_time(5)
    spec = ProjectSpec("vision", parent="lab", quota=MilliGpu(2500), members=("ana",))
    changed = await lab.cluster.put_project(spec)

    assert (spec, created.created) == (changed.spec, changed.created)
    parent, vision = (await lab.cluster.observe()).projects
    assert (parent.quota, parent.limit) == (LeftOut.SUM_OF_CHILDREN, 4000)
    assert (vision.quota, vision.parent, vision.members) == (2500, "lab", ("ana",))


async def test_quota_by_type_reaches_the_snapshot_with_the_types_of_the_nodes(lab):
    await lab.cluster.put_project(ProjectSpec("all", quota=MilliGpu(1000)))
    (gpu_type,) = {node.gpu_type for node in (await lab.cluster.observe()).nodes if node.devices}
    table = {gpu_type.lower(): MilliGpu(2000), "k40": None, "*": MilliGpu(500)}
    spec = ProjectSpec("vision", quota=None, quota_by_type=table)
    await lab.cluster.put_project(spec)

    assert [p.spec for p in await lab.cluster.projects() if p.spec.name == "vision"] == [spec]
    projects = {project.name: project for project in (await lab.cluster.observe()).projects}
    assert projects["all"].quota_by_type is None
    assert projects["vision"].quota_by_type == {gpu_type: 2000, "k40": None, "*": 500}


async def test_project_change_removes_omitted_map_entries(lab):
    before = ProjectSpec(
        "vision",
        quota=MilliGpu(3000),
        quota_by_type={"h100": MilliGpu(2000), "*": MilliGpu(1000)},
        node_types_build=("l4",),
        node_types_train=("big",),
    )
    after = replace(
        before,
        quota=MilliGpu(1000),
        quota_by_type={"*": MilliGpu(1000)},
        node_types_build=None,
    )
    for spec in (before, after, replace(after, quota_by_type=None)):
        await lab.cluster.put_project(spec)

        assert [record.spec for record in await lab.cluster.projects()] == [spec]


async def test_project_with_an_unknown_or_cyclic_parent_is_refused(lab):
    for name, parent in [("a", None), ("b", "a"), ("c", "b")]:
        await lab.cluster.put_project(ProjectSpec(name, parent=parent))

    for parent, text in (
        ("no", "there is no such project"),
        ("a", "its own ancestor: a < a"),
        ("c", "its own ancestor: a < c < b < a"),
    ):
        with pytest.raises(InvalidRequest, match=text):
            await lab.cluster.put_project(ProjectSpec("a", parent=parent))

    assert None is (await lab.cluster.projects())[0].spec.parent


async def test_projects_have_at_most_twenty_levels(lab):
    for number in range(20):  # c0 < c1 < ... < c19
        parent = f"c{number - 1}" if number else None
        await lab.cluster.put_project(ProjectSpec(f"c{number}", parent=parent))
    await lab.cluster.put_project(ProjectSpec("top"))

    # None: the parent would be its own ancestor.
    for child, parent, levels in (("c20", "c19", 21), ("c0", "top", 21), ("c10", "c19", None)):
        text = f"{levels} levels of projects" if levels else "own ancestor"
        with pytest.raises(InvalidRequest, match=text):
            await lab.cluster.put_project(ProjectSpec(child, parent=parent))

    await lab.cluster.put_project(ProjectSpec("c19", parent="c18", members=("ana",)))
    await lab.cluster.put_project(ProjectSpec("c10", parent="top"))


async def test_project_in_use_is_not_deleted(lab):
    await lab.cluster.put_project(ProjectSpec("lab"))
    await lab.cluster.put_project(ProjectSpec("vision", parent="lab"))
    await lab.cluster.submit([lab.job()])

    with pytest.raises(Conflict, match="has the children vision"):
        await lab.cluster.delete_project("lab")
    with pytest.raises(Conflict, match="unfinished workloads: vision/exp"):
        await lab.cluster.delete_project("vision")

    await lab.cluster.delete("vision/exp", by="ana")
    await lab.cluster.delete_project("vision")
    await lab.cluster.delete_project("lab")
    assert list(await lab.cluster.projects()) == []


async def test_recreated_project_has_no_workload_of_the_deleted_project(lab):
    await lab.cluster.put_project(ProjectSpec("vision"))
    await lab.cluster.put_project(ProjectSpec("nlp"))
    specs = [lab.job(), lab.job("other", project="nlp")]
    await lab.started(*specs)
    for spec in specs:
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")

    if lab.kind == "kubernetes":  # the cluster keeps finished Jobs
        with pytest.raises(Conflict, match="has 1 finished workload: vision/exp"):
            await lab.cluster.delete_project("vision")
        await lab.cluster.delete("vision/exp", by="root")
        await lab.until_deleted("vision/exp")
    await lab.cluster.delete_project("vision")
    await lab.cluster.put_project(ProjectSpec("vision", members=("zoe",)))

    assert [record.id for record in await lab.cluster.workloads()] == ["nlp/other"]
    assert "vision/exp" not in await lab.cluster.names()


@pytest.mark.not_on_kubernetes("devices have no UUIDs there without an agent")
@pytest.mark.not_on_pods("devices have UUIDs when agents report them")
async def test_snapshot_contains_the_clusters_nodes(lab):
    snapshot = await lab.cluster.observe()

    [node] = snapshot.nodes
    assert (node.name, node.devices, node.device_memory_mib) == (NODE, 4, 16_000)
    assert int(lab.clock()) == snapshot.now
    assert [device.uuid for device in (await lab.cluster.devices())[NODE]] == [
        "SIM-0",
        "SIM-1",
        "SIM-2",
        "SIM-3",
    ]


async def test_project_change_function_gets_the_current_project_and_may_refuse(lab):
    await lab.cluster.put_project(ProjectSpec("lab", limit=MilliGpu(4000), members=("ana",)))
    received = []

    def change(known):
        received.append(known)
        if known is None:
            raise Forbidden("There is none to be changed.")
        return replace(known, members=("ben",))

    changed = await lab.cluster.change_project("lab", change)
    with pytest.raises(Forbidden):
        await lab.cluster.change_project("vision", change)

    assert changed.spec == ProjectSpec("lab", limit=MilliGpu(4000), members=("ben",))
    assert [p.spec for p in await lab.cluster.projects()] == [changed.spec]
    assert [known and known.members for known in received] == [("ana",), None]
