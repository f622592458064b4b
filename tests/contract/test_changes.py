"""Changes since a version lead a reader to the same workloads as a list of all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from labs import Lab
from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.records import ProjectSpec, WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.cycle import decide


class Reader:
    """Workloads that are kept up to date by changes."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.records: dict[WorkloadId, WorkloadRecord] = {}

    async def read(self, lab: Lab) -> WorkloadChanges:
        changes = await lab.cluster.changes(self.version)
        for workload in list(self.records) if changes.is_all else changes.removed:
            self.records.pop(workload, None)
        self.records |= {record.id: record for record in changes.changed}
        self.version = changes.version
        current = await lab.cluster.workloads()
        assert self.records.keys() == {record.id for record in current}
        assert all(self.records[record.id] is record for record in current)
        assert [record for record in current if record in changes.changed] == [*changes.changed]
        return changes


async def do_nothing(_lab: Lab) -> None:
    pass


async def submit_two(lab: Lab) -> None:
    await lab.cluster.submit([lab.job("new-1"), lab.job("new-2")])


async def submit_array(lab: Lab) -> None:
    await lab.cluster.submit([lab.job("sweep", array=3)])


async def suspend(lab: Lab) -> None:
    await lab.cluster.suspend("vision/exp", by="ana")


async def delete(lab: Lab) -> None:
    await lab.cluster.delete("vision/exp", by="ana")
    await lab.until_deleted("vision/exp")


async def replace(lab: Lab) -> None:
    await delete(lab)
    await lab.cluster.submit([lab.job("exp")])


async def submit_and_delete(lab: Lab) -> None:
    await lab.cluster.submit([lab.job("brief")])
    await lab.cluster.delete("vision/brief", by="ana")
    await lab.until_deleted("vision/brief")


Change = Callable[[Lab], Awaitable[None]]
CASES: dict[str, tuple[Change, set[WorkloadId], set[WorkloadId]]] = {
    "nothing changed": (do_nothing, set(), set()),
    "submitted": (submit_two, {"vision/new-1", "vision/new-2"}, set()),
    "array submitted": (submit_array, {"vision/sweep"}, set()),
    "state changed": (suspend, {"vision/exp"}, set()),
    "deleted": (delete, set(), {"vision/exp"}),
    "deleted and submitted anew": (replace, {"vision/exp"}, {"vision/exp"}),
}


@pytest.mark.parametrize(("change", "changed", "removed"), CASES.values(), ids=CASES)
async def test_changes_since_a_version_are_the_workloads_that_changed(
    lab, change, changed, removed
):
    await lab.cluster.submit([lab.job("exp"), lab.job("other")])
    reader = Reader()
    await reader.read(lab)
    await change(lab)

    changes = await reader.read(lab)

    assert not changes.is_all
    assert {record.id for record in changes.changed} == changed
    assert set(changes.removed) == removed


async def test_changes_without_a_workload_that_came_and_went_name_no_row_of_it(lab):
    reader = Reader()
    await reader.read(lab)
    await submit_and_delete(lab)

    changes = await reader.read(lab)

    assert list(changes.changed) == []
    assert set(changes.removed) <= {"vision/brief"}


@pytest.mark.parametrize("since", [None, 10**9], ids=["no version", "version of another life"])
async def test_changes_since_an_unknown_version_are_all_workloads(lab, since):
    await lab.cluster.submit([lab.job("exp"), lab.job("other")])

    changes = await lab.cluster.changes(since)

    assert changes.is_all
    assert list(changes.changed) == list(await lab.cluster.workloads())
    assert list(changes.removed) == []


async def test_versions_of_changes_never_go_back(lab):
    versions = []
    for name in ("exp", "new"):
        for change in (
            lambda name=name: lab.cluster.submit([lab.job(name)]),
            lambda name=name: lab.cluster.suspend(f"vision/{name}", by="ana"),
            lambda name=name: lab.cluster.delete(f"vision/{name}", by="ana"),
        ):
            await change()
            versions.append((await lab.cluster.changes(None)).version)

    assert versions == sorted(versions)
    assert len(set(versions)) > 1


async def test_started_array_elements_are_changes_beside_their_array(lab):
    await lab.cluster.put_project(ProjectSpec("vision", quota=None))
    await lab.cluster.submit([lab.job("sweep", array=6)])
    reader = Reader()
    await reader.read(lab)
    assert await lab.cluster.apply(decide(await lab.cluster.observe())) == []
    for index in range(4):
        await lab.until(f"vision/sweep-{index}", "starting", "running")

    changes = await reader.read(lab)

    changed = {record.id for record in changes.changed}
    assert changed == {"vision/sweep", *(f"vision/sweep-{index}" for index in range(4))}
    assert list(changes.removed) == []
