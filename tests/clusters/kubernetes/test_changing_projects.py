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


class Member:
    """Mia's change of the members, allowed as long as she is an admin of the project."""

    def __init__(self, meanwhile) -> None:
        self.asked: list[Any] = []
        self._meanwhile = meanwhile

    def __call__(self, known):
        self.asked.append(known)
        if known is None or "mia" not in known.admins:
            raise Forbidden("You may not.", hint="Ask an admin.")
        if len(self.asked) == 1:
            self._meanwhile()
        return replace(known, members=("ana", "ben"))


def by_hub_admin(lab, method="PATCH", path=f"{PROJECTS}/vision", body=None):
    kind = {"content_type": MERGE} if method == "PATCH" else {}
    lab.around.plane.request(method, path, body, **kind)


async def now(lab):
    return await lab.cluster.change_project("vision", lambda known: known)


async def test_a_lower_quota_stays_and_so_do_the_members(lab):
    change = Member(lambda: by_hub_admin(lab, body={"spec": {"quota": "1", "priority": 7}}))

    record = await lab.cluster.change_project("vision", change)

    assert len(change.asked) == 2
    assert (record.spec.quota, record.spec.priority) == (1000, 7)
    assert record.spec.members == ("ana", "ben")
    assert (await now(lab)).spec == record.spec


async def test_change_is_refused_if_the_caller_lost_admin_rights_meanwhile(lab):
    change = Member(lambda: by_hub_admin(lab, body={"spec": {"admins": None, "quota": "1"}}))

    with pytest.raises(Forbidden):
        await lab.cluster.change_project("vision", change)

    found = (await now(lab)).spec
    assert (found.admins, found.quota, found.members) == ((), 1000, ("ana",))


async def test_project_admin_cannot_recreate_a_project_deleted_meanwhile(lab):
    change = Member(lambda: by_hub_admin(lab, "DELETE"))

    with pytest.raises(Forbidden):
        await lab.cluster.change_project("vision", change)

    assert change.asked[1] is None
    assert lab.around.plane.request("GET", PROJECTS)["items"] == []


async def test_second_of_two_creators_changes_the_project_of_the_first(lab):
    asked = []

    def change(known):
        asked.append(known)
        if known is None:
            made = {
                "apiVersion": "jupyter-runai.dev/v1alpha1",
                "kind": "Project",
                "metadata": {"name": "nlp"},
                "spec": {"quota": "2"},
            }
            by_hub_admin(lab, "POST", PROJECTS, made)
        return replace(known or ProjectSpec("nlp"), members=("ana",))

    record = await lab.cluster.change_project("nlp", change)

    assert asked[0] is None
    assert (record.spec.quota, record.spec.members) == (2000, ("ana",))


async def test_status_write_of_the_scheduler_does_not_block_a_project_change(lab):
    status = {"status": {"pending": "3"}}
    change = Member(lambda: by_hub_admin(lab, path=f"{PROJECTS}/vision/status", body=status))

    record = await lab.cluster.change_project("vision", change)

    assert record.spec == replace(VISION, members=("ana", "ben"))


async def test_project_change_that_always_conflicts_raises_changed_meanwhile(lab):
    asked = []

    def change(known):
        asked.append(known)
        by_hub_admin(lab, body={"spec": {"priority": len(asked)}})
        return replace(known, members=())

    with pytest.raises(Conflict, match="vision is changed by others at the same time") as refused:
        await lab.cluster.change_project("vision", change)

    assert refused.value.code == "changed_meanwhile"
    assert (await now(lab)).spec.members == ("ana",)
