"""Concurrent changes of one project on a real API server: neither undoes the other's.

The callback that computes the change makes the competing one, between the read and the write: the
order does not depend on luck.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control_plane.lab import PROJECTS
from kubernetes_lab import kubernetes_lab
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Conflict, Forbidden

pytestmark = pytest.mark.kubernetes

VISION = ProjectSpec("vision", quota=MilliGpu(4000), members=("ana",), admins=("mia",))
MERGE = "application/merge-patch+json"


@pytest.fixture
async def lab(plane):
    async with kubernetes_lab(plane) as made:
        await made.cluster.put_project(VISION)
        yield made


class AddBenAsMember:
    """Mia's change of the members to ana and ben, allowed while she is an admin of the project."""

    def __init__(self, competing_change) -> None:
        self.read_specs: list[Any] = []
        self._competing_change = competing_change

    def __call__(self, stored):
        self.read_specs.append(stored)
        if stored is None or "mia" not in stored.admins:
            raise Forbidden("You may not.", hint="Ask an admin.")
        if len(self.read_specs) == 1:
            self._competing_change()
        return replace(stored, members=("ana", "ben"))


def change_as_hub_admin(lab, method="PATCH", path=f"{PROJECTS}/vision", body=None):
    kind = {"content_type": MERGE} if method == "PATCH" else {}
    lab.around.plane.request(method, path, body, **kind)


async def current_project(lab):
    return await lab.cluster.change_project("vision", lambda stored: stored)


async def test_concurrent_changes_of_project_quota_and_members_are_both_applied(lab):
    change = AddBenAsMember(
        lambda: change_as_hub_admin(lab, body={"spec": {"quota": "1", "priority": 7}})
    )

    record = await lab.cluster.change_project("vision", change)

    assert len(change.read_specs) == 2  # the conflict made it read the project again
    assert (record.spec.quota, record.spec.priority) == (1000, 7)  # quota in milli-GPUs
    assert record.spec.members == ("ana", "ben")
    assert (await current_project(lab)).spec == record.spec


async def test_project_change_is_refused_if_the_caller_lost_admin_rights_meanwhile(lab):
    change = AddBenAsMember(
        lambda: change_as_hub_admin(lab, body={"spec": {"admins": None, "quota": "1"}})
    )

    with pytest.raises(Forbidden):
        await lab.cluster.change_project("vision", change)

    spec = (await current_project(lab)).spec
    assert (spec.admins, spec.quota, spec.members) == ((), 1000, ("ana",))


async def test_project_admin_cannot_recreate_a_project_deleted_meanwhile(lab):
    change = AddBenAsMember(lambda: change_as_hub_admin(lab, "DELETE"))

    with pytest.raises(Forbidden):
        await lab.cluster.change_project("vision", change)

    assert change.read_specs[1] is None
    assert lab.around.plane.request("GET", PROJECTS)["items"] == []


async def test_concurrent_second_creation_of_a_project_changes_the_first_project(lab):
    read_specs = []

    def change(stored):
        read_specs.append(stored)
        if stored is None:
            project = {
                "apiVersion": "jupyter-runai.dev/v1alpha1",
                "kind": "Project",
                "metadata": {"name": "nlp"},
                "spec": {"quota": "2"},
            }
            change_as_hub_admin(lab, "POST", PROJECTS, project)
        return replace(stored or ProjectSpec("nlp"), members=("ana",))

    record = await lab.cluster.change_project("nlp", change)

    assert read_specs[0] is None
    assert (record.spec.quota, record.spec.members) == (2000, ("ana",))


async def test_status_write_of_the_scheduler_does_not_block_a_project_change(lab):
    status = {"status": {"pending": "3"}}
    change = AddBenAsMember(
        lambda: change_as_hub_admin(lab, path=f"{PROJECTS}/vision/status", body=status)
    )

    record = await lab.cluster.change_project("vision", change)

    assert record.spec == replace(VISION, members=("ana", "ben"))


async def test_project_change_that_always_conflicts_raises_changed_meanwhile(lab):
    read_specs = []

    def change(stored):
        read_specs.append(stored)
        change_as_hub_admin(lab, body={"spec": {"priority": len(read_specs)}})
        return replace(stored, members=())

    with pytest.raises(Conflict, match="vision is changed by others at the same time") as refused:
        await lab.cluster.change_project("vision", change)

    assert refused.value.code == "changed_meanwhile"
    assert (await current_project(lab)).spec.members == ("ana",)
