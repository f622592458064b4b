"""Former members of a project: running work goes on, waiting work does not start or grow."""

from __future__ import annotations

import time

import pytest

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.services.former_members import FormerMembers
from runai.hub_service.client import AsyncClient
from runai.hub_service.clusters.simulated import SimulatedCluster, simulated_cluster
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Project, Snapshot
from runai.hub_service.wire.errors import Forbidden, NotFound, Unavailable
from runai.hub_service.wire.schemas import ProjectPut, ScaleRequest
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async

JOB = {"project": "vision", "command": ["train"]}


async def test_running_jobs_of_removed_members_go_on_and_their_waiting_jobs_do_not_start(simulated):
    ana, vic = await simulated.client("ana"), await simulated.client("vic")
    for name, fields in (
        ("elastic", {"elastic": True, "workers": 2, "gpus": 1}),
        ("suspended", {"gpus": 1}),
        ("waiting", {"gpus": 4}),
    ):
        await ana.submit(SubmitRequest(name=name, **JOB, **fields))
    await ana.suspend("vision/suspended")
    simulated.platform.cluster.executor.complete("vision/suspended", -15)

    changed = await vic.put_project("vision", ProjectPut(members=["mia", "ro"]))

    assert changed.notes == [
        "ana is no member any more: of ana's workloads 1 runs on and 2 do not start"
    ]
    for act in (
        lambda: ana.resume("vision/suspended"),
        lambda: ana.scale("vision/elastic", ScaleRequest(workers=4)),
        lambda: ana.scale("vision/elastic", ScaleRequest(min_workers=2)),
        lambda: ana.keep("vision/elastic"),
        lambda: ana.regain("vision/elastic"),
        lambda: ana.submit(SubmitRequest(name="new", **JOB)),
    ):
        with pytest.raises(Forbidden) as refused:
            await act()
        assert refused.value.code == "not_a_member"
    waiting = await eventually_async(lambda: _reason(ana, "vision/waiting", "not_a_member"))
    assert waiting.startswith("ana is no member of vision any more")
    assert (await ana.scale("vision/elastic", ScaleRequest(workers=2))).state == "running"
    await vic.resume("vision/suspended")  # an admin may, and the job waits
    await eventually_async(lambda: _reason(ana, "vision/suspended", "not_a_member"))
    await ana.suspend("vision/elastic")
    await ana.delete("vision/waiting")

    restored = await vic.put_project("vision", ProjectPut(members=["ana", "mia", "ro"]))
    assert restored.notes == []
    await eventually_async(lambda: _state(ana, "vision/suspended", "running"))


async def _reason(client: AsyncClient, workload: str, code: str) -> str:
    reason = (await client.workload(workload)).reason
    return reason.text if reason is not None and reason.code == code else ""


async def _state(client: AsyncClient, workload: str, state: str) -> bool:
    return (await client.workload(workload)).state == state


async def test_project_above_a_lowered_limit_gets_a_note_and_starts_no_job(simulated):
    ana, root = await simulated.client("ana"), await simulated.client("root")
    for name in ("one", "two"):
        await ana.submit(SubmitRequest(name=name, **JOB, gpus=0.5))
    assert (await ana.project("vision")).notes == []

    changed = await root.put_project("vision", ProjectPut(quota=0.5, limit=0.5))

    note = (
        "holds 1 GPU, 0.5 above its limit; nothing starts until it is below, and it is the first to"
        " give GPUs back"
    )
    assert changed.notes == [note]
    async with simulated.http("out") as http:
        assert note in (await http.get("projects/vision")).text
    reply = await ana.submit(SubmitRequest(name="three", **JOB, gpus=0.5))
    assert reply.workloads[0].reason.code == "over_limit"
    assert [w.state for w in await ana.workloads()] == ["running", "running", "queued"]


# ---- former members


class StubHub:
    """A hub's users and their groups; None: it does not answer."""

    def __init__(self, **groups: set[str]) -> None:
        self.groups: dict[str, set[str]] | None = groups

    async def person(self, name: str) -> Actor:
        if self.groups is None:
            raise Unavailable("It does not answer.")
        if name not in self.groups:
            raise NotFound(f"There is no user {name}.")
        return Actor(name, groups=frozenset(self.groups[name]))


@pytest.fixture
async def cluster() -> SimulatedCluster:
    cluster = simulated_cluster({}, clock=time.time)
    await cluster.put_project(ProjectSpec("lab", members=("ana",), groups=("lab-people",)))
    for user in ("ana", "bob", "gus"):
        await cluster.submit([WorkloadSpec("lab", f"of-{user}", user, "job", ("true",))])
    return cluster


async def former_member_names(members: FormerMembers) -> tuple[str, ...]:
    marked = await members.marked(Snapshot(projects=(Project(name="lab"),)))
    return marked.projects[0].former_members


async def test_members_by_name_and_by_group_are_not_former_members(cluster):
    hub = StubHub(ana=set(), bob={"lab-people"}, gus={"others"})

    assert await former_member_names(FormerMembers(cluster, hub.person)) == ("gus",)


async def test_hub_group_change_updates_former_members_at_the_next_refresh(cluster):
    hub = StubHub(ana=set(), bob={"lab-people"}, gus={"lab-people"})
    members = FormerMembers(cluster, hub.person)
    assert await former_member_names(members) == ()

    hub.groups = {"bob": set()}  # and gus is deleted there
    await members.refresh()

    assert await former_member_names(members) == ("bob", "gus")


async def test_unreachable_hub_makes_no_user_a_former_member(cluster):
    hub = StubHub(ana=set(), bob={"lab-people"}, gus=set())
    members, known = FormerMembers(cluster, hub.person), hub.groups
    hub.groups = None
    assert await former_member_names(members) == ()

    hub.groups = known
    await members.refresh()
    hub.groups = None
    await members.refresh()

    assert await former_member_names(members) == ("gus",)


async def test_user_removed_by_name_is_a_former_member_without_the_hub(cluster):
    hub = StubHub()
    hub.groups = None
    members = FormerMembers(cluster, hub.person)

    await cluster.put_project(ProjectSpec("lab", quota=MilliGpu(1000), members=("bob",)))

    assert await former_member_names(members) == ("ana", "gus")


async def test_submission_without_membership_check_makes_no_user_a_former_member(cluster):
    hub = StubHub(ana=set(), bob=set(), gus=set())

    members = FormerMembers(cluster, hub.person, was_checked=lambda spec: spec.user == "gus")

    assert await former_member_names(members) == ("gus",)
