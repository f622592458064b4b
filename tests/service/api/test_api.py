"""The API's successful answers: lists, waits, streams, sessions, usage, plans, metrics."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from runai.hub_service.client.calls import WorkloadFilter
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Forbidden, NotFound, Unavailable
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.reports import AgentReport, DeviceSample, UsageSample
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async


def job(name: str | None = None, gpus: str | None = None, **options: object) -> SubmitRequest:
    fields = {"name": name, "gpus": gpus and Decimal(gpus), **options}
    return SubmitRequest(command=["true"], **{k: v for k, v in fields.items() if v is not None})


async def test_submission_defaults_to_the_users_only_project_and_a_free_job_name(simulated):
    ana = await simulated.client("ana")
    first = await ana.submit(job())
    concurrent = await asyncio.gather(*(ana.submit(job()) for _ in range(2)))

    assert first.workloads[0].id == "vision/job-1"
    assert {reply.workloads[0].id for reply in concurrent} == {"vision/job-2", "vision/job-3"}


async def test_array_submission_creates_indexed_workloads(simulated):
    ana = await simulated.client("ana")
    reply = await ana.submit(job("exp", "0.5", array=3))
    details = [await ana.workload(w.id) for w in reply.workloads]

    assert [(d.name, d.array_index) for d in details] == [("exp-0", 0), ("exp-1", 1), ("exp-2", 2)]


async def test_submission_reply_says_whether_the_job_starts_or_why_it_waits(simulated):
    ana = await simulated.client("ana")
    first = await ana.submit(job("exp1", "4"))  # the limit of vision
    second = await ana.submit(job("exp2", "1"))

    assert (first.workloads[0].state, first.workloads[0].allocated) == ("running", 4)
    assert first.notes == []
    assert second.workloads[0].reason.code == "over_limit"
    assert [note.startswith("exp2 waits: ") for note in second.notes] == [True]


async def test_dry_run_gives_the_reply_of_a_submission_and_stores_nothing(simulated):
    ana = await simulated.client("ana")
    fitting_dry_run = await ana.submit(job("exp1", "1"), dry_run=True)
    root = await simulated.client("root")
    await root.put_project("vision", ProjectPut(limit=None))
    gang = job("exp1", "1", workers=8)  # the only node has 5 GPUs
    dry_run_of_gang = await ana.submit(gang, dry_run=True)

    assert (fitting_dry_run.dry_run, fitting_dry_run.notes) == (True, [])
    assert dry_run_of_gang.workloads[0].reason.code == "no_such_node"
    assert [note.startswith("exp1 waits: ") for note in dry_run_of_gang.notes] == [True]
    assert await ana.workloads() == []
    stored = await ana.submit(gang)
    assert [(w.state, w.reason.code) for w in stored.workloads] == [("queued", "no_such_node")]
    assert stored.notes == dry_run_of_gang.notes


async def test_dry_run_on_kubernetes_names_what_it_does_not_check(simulated):
    """The cluster's own model would call a job startable that only a tainted node could run."""
    simulated.platform.images = True
    ana = await simulated.client("ana")
    fitting_dry_run = await ana.submit(job("exp1", "1"), dry_run=True)
    stored = await ana.submit(job("exp1", "4"))  # the limit of vision
    waiting_dry_run = await ana.submit(job("exp2", "1"), dry_run=True)

    assert fitting_dry_run.notes == ["not checked here: taints, volumes, admission"]
    assert waiting_dry_run.notes[-1:] == fitting_dry_run.notes
    assert fitting_dry_run.unchecked == "taints, volumes, admission"
    assert (stored.notes, stored.unchecked) == ([], "")


async def test_dry_run_of_a_reclaim_names_the_jobs_that_it_pauses(simulated):
    vic, root = await simulated.client("vic"), await simulated.client("root")
    await root.put_project("vision", ProjectPut(limit=None))
    await vic.submit(job("fill", "1", array=5))  # on all GPUs
    nel = await simulated.client("nel")

    reply = await nel.submit(job("mine", "2"), dry_run=True)

    [tried] = reply.workloads
    assert tried.reason.is_making_room
    assert tried.reason.text == "vision/fill-3 and vision/fill-4 make room for it"
    assert tried.expected_start.text == (
        "starts as soon as the jobs that make room for it have stopped"
    )
    assert reply.notes == [f"mine waits: {tried.reason.text}"]


async def test_workload_list_is_filtered_by_project_user_and_state(simulated):
    ana, vic, nel = [await simulated.client(name) for name in ("ana", "vic", "nel")]
    for client, name in ((ana, "a"), (vic, "v"), (nel, "n")):
        await client.submit(job(name, "1"))
    await ana.suspend("vision/a")

    async def names(client=vic, **by: Any) -> list[str]:
        return [w.name for w in await client.workloads(WorkloadFilter(**by))]

    assert await names() == ["a", "v"]
    assert await names(user="ana") == ["a"]
    assert await names(state="running") == ["v"]
    assert await names(project="nlp") == []
    assert await names(text="sion/v") == await names(text="vic") == ["v"]
    assert await names(ana, manageable=True) == ["a"]
    assert await names(kind="session") == []


async def test_workload_long_poll_returns_when_the_state_changes_and_not_before(simulated):
    ana = await simulated.client("ana")
    await ana.submit(job("exp1", "1"))
    workload = await ana.workload("vision/exp1")
    waiting = asyncio.create_task(ana.wait("vision/exp1", workload.version, timeout_s=30))
    unchanged = await ana.wait("vision/exp1", workload.version, timeout_s=0.2)
    simulated.platform.cluster.executor.complete("vision/exp1")

    assert unchanged.version == workload.version
    assert (await waiting).state == "succeeded"


async def test_service_shutdown_answers_long_polls_and_ends_event_streams(simulated):
    ana = await simulated.client("ana")
    await ana.submit(job("exp1", "1"))
    workload = await ana.workload("vision/exp1")
    waiting = asyncio.create_task(ana.wait("vision/exp1", workload.version, timeout_s=30))
    events = aiter(ana.events())
    await anext(events)
    simulated.platform.shutdown.set()

    assert (await waiting).version == workload.version
    with pytest.raises(Unavailable, match="ended the stream"):
        await anext(events)


async def test_hub_session_gets_its_gpu_share_and_runs_once_attached(simulated):
    hub, ana = await simulated.client("hub"), await simulated.client("ana")
    request = SubmitRequest(name="lab-ana", kind="session", owner="ana", gpus=Decimal("0.5"))
    granted = (await hub.submit(request)).workloads[0]
    environment = await hub.environment("vision/lab-ana")
    running = await hub.attach("vision/lab-ana", ProcessReport(pid=4242, created=1.0))
    mine = (await ana.workloads())[0]

    assert (granted.state, granted.allocated, granted.preemptible) == ("starting", 0.5, False)
    assert environment.environment["RUNAI_WORKLOAD"] == "vision/lab-ana"
    assert environment.environment["CUDA_VISIBLE_DEVICES"].startswith("GPU-sim-")
    assert running.state == "running"
    assert (mine.id, mine.user, mine.manageable) == ("vision/lab-ana", "ana", True)


async def test_project_member_sees_a_colleagues_workload_but_no_details(simulated):
    ana, mia = await simulated.client("ana"), await simulated.client("mia")
    await ana.submit(job("exp1", source="secret = 42"))

    assert [(w.id, w.manageable) for w in await mia.workloads()] == [("vision/exp1", False)]
    with pytest.raises(Forbidden, match="Only ana or an admin of its project may read vision/exp1"):
        await mia.workload("vision/exp1")


async def test_hidden_workload_returns_same_error_as_missing_workload(simulated):
    ana, nel = await simulated.client("ana"), await simulated.client("nel")
    await ana.submit(job("exp1"))

    async def answer(workload: str) -> str:
        with pytest.raises(NotFound) as missing:
            await nel.workload(workload)
        return str(missing.value).replace(workload, "it")

    assert await answer("vision/exp1") == await answer("vision/exp2")


async def test_non_members_see_allocated_gpus_without_workload_or_user(simulated):
    ana, nel = await simulated.client("ana"), await simulated.client("nel")
    await ana.submit(job("exp1", "0.5"))
    (member_view,) = await ana.nodes()
    (outsider_view,) = await nel.nodes()
    overview = await nel.overview()

    assert member_view.devices[0].allocations[0].workload == "vision/exp1"
    allocation = outsider_view.devices[0].allocations[0]
    assert (allocation.workload, allocation.user, allocation.gpus) == ("", "", 0.5)
    assert overview.workloads == []
    assert [(p.name, p.allocated, p.members) for p in overview.projects] == [
        ("vision", 0.5, []),
        ("nlp", 0, []),
    ]


async def test_overview_has_quota_allocation_and_waiting_gpus_of_a_project(simulated):
    ana, hub = await simulated.client("ana"), await simulated.client("hub")
    await hub.submit(SubmitRequest(name="lab", kind="session", owner="ana", gpus=Decimal("0.5")))
    await ana.submit(job("exp1", "3"))
    await ana.submit(job("exp2", "1"))
    vision = (await ana.overview()).projects[0]

    assert (vision.quota, vision.build_quota, vision.limit) == (2.5, 2.5, 4)  # as configured
    assert (vision.allocated, vision.build_allocated, vision.waiting) == (3.5, 0.5, 1)
    assert (vision.over_quota, vision.may_submit, vision.may_admin) == (1.0, True, False)


async def test_overview_warns_admins_of_quotas_above_the_clusters_gpus(simulated):
    root, ana = await simulated.client("root"), await simulated.client("ana")
    await root.put_project("third", ProjectPut(quota=Decimal(1)))  # beside 2.5 and 2.5

    assert (await root.overview()).notes == ["Quotas add up to 6 GPUs, the cluster has 5."]
    assert (await ana.overview()).notes == []


async def test_overview_warns_admins_of_quotas_above_the_gpus_of_a_type(simulated):
    root = await simulated.client("root")
    gpu_type = (await root.nodes())[0].devices[0].name
    for name in ("vision", "nlp"):
        await root.put_project(name, ProjectPut(quota={gpu_type: Decimal(3), "*": Decimal(1)}))

    assert f"Quotas of {gpu_type} add up to 6 GPUs, the cluster has 5 of them." in (
        (await root.overview()).notes
    )


async def test_project_put_changes_only_sent_fields_and_project_delete_removes_it(simulated):
    root = await simulated.client("root")
    await root.put_project("new", ProjectPut(quota=Decimal("1.5"), members=["zoe"]))
    changed = await root.put_project("new", ProjectPut(limit=Decimal(2)))
    unlimited = await root.put_project("new", ProjectPut(quota=None))
    await root.delete_project("new")

    assert (changed.quota, changed.limit, changed.members) == (1.5, 2, ["zoe"])
    assert (unlimited.quota, unlimited.limit) == (None, 2)
    assert [p.name for p in await root.projects()] == ["vision", "nlp"]


async def test_project_update_notes_new_members_unknown_to_the_hub_once(simulated):
    root = await simulated.client("root")
    created = await root.put_project("new", ProjectPut(members=["zoe", "ana"], admins=["dave"]))
    again = await root.put_project("new", ProjectPut(members=["zoe", "ana", "mia"]))

    assert [note.partition(" yet")[0] for note in created.notes] == [
        "JupyterHub knows no user zoe",
        "JupyterHub knows no user dave",
    ]
    assert again.notes == []


async def test_project_admin_revoked_during_a_project_update_cannot_set_members(
    simulated, monkeypatch
):
    root, vic = await simulated.client("root"), await simulated.client("vic")
    cluster = simulated.platform.cluster
    change = cluster.change_project

    async def change_after_revocation(name, update):  # the hub's admin was quicker
        await change(name, lambda known: replace(known, admins=(), quota=MilliGpu(0)))
        return await change(name, update)

    monkeypatch.setattr(cluster, "change_project", change_after_revocation)
    with pytest.raises(Forbidden):
        await vic.put_project("vision", ProjectPut(members=["vic", "zoe"]))

    vision = next(project for project in await root.projects() if project.name == "vision")
    assert (vision.quota, vision.admins) == (0, [])
    assert "zoe" not in vision.members


async def test_event_stream_sends_an_overview_at_once_and_after_each_change(simulated):
    ana = await simulated.client("ana")
    states: list[list[str]] = []
    async with aclosing(ana.events()) as events, asyncio.timeout(60):
        async for overview in events:
            now = [w.state for w in overview.workloads]
            if states[-1:] == [now]:  # another field of it has changed
                continue
            states.append(now)
            match now:
                case []:
                    await ana.submit(job("exp1", "1"))
                case ["running"]:
                    simulated.platform.cluster.executor.complete("vision/exp1")
                case ["succeeded"]:
                    await ana.delete("vision/exp1")
            if len(states) > 1 and states[-1] == []:
                break

    assert [state for state in states if state != ["queued"]] == [
        [],
        ["running"],
        ["succeeded"],
        [],
    ]


async def test_workload_and_device_views_include_measured_usage_beside_allocation(simulated):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", "0.5"))
    uuid = (await ana.nodes())[0].devices[0].uuid
    clock = simulated.platform.clock
    report = AgentReport(
        node="lab",
        at=clock(),
        interval=1.0,
        devices=[DeviceSample(device=uuid, utilization=0.4, memory_mib=2048)],
        samples=[
            UsageSample(workload="vision/exp1", device=uuid, utilization=0.4, memory_mib=1024)
        ],
    )
    reply = await agent.report(report)
    workload = (await ana.workloads())[0]
    device = (await ana.nodes())[0].devices[0]
    usage = await ana.usage(workload="vision/exp1", step_s=1)

    assert [(a.workload, a.shares[0].uuid) for a in reply.allocations] == [("vision/exp1", uuid)]
    assert (workload.allocated, workload.measured.utilized) == (0.5, 0.4)
    assert workload.measured.memory_used_mib == 1024
    assert (device.utilized, device.memory_used_mib) == (0.4, 2048)
    assert (usage.capacity, usage.simulated) == (5, True)


async def test_scheduler_plan_lists_only_decisions_about_workloads_visible_to_its_reader(simulated):
    ana, nel = await simulated.client("ana"), await simulated.client("nel")
    await ana.submit(job("a", "4"))  # the limit of vision, so the next job waits
    await ana.submit(job("a2", "1"))
    whole = [d["workload"] for d in (await ana.plan())["decisions"]]

    assert whole == ["vision/a2"]
    assert (await nel.plan())["decisions"] == []
    assert (await nel.plan())["projects"]["vision"]["allocated"] == 4


async def test_prometheus_metrics_include_workload_gpu_and_decision_counts(simulated):
    ana = await simulated.client("ana")
    await ana.submit(job("exp1", "1.0"))
    async with simulated.http("ana") as http:
        text = (await http.get("metrics")).text

    assert 'runai_workloads{project="vision",state="running"} 1.0' in text
    assert 'runai_gpus_allocated{project="vision"} 1.0' in text
    assert 'runai_gpus_quota{project="vision"} 2.5' in text
    assert 'runai_gpus{node="lab"} 5.0' in text
    assert 'runai_decisions_total{kind="start"} 1.0' in text
    assert "runai_cycle_seconds_count" in text


async def test_every_route_and_its_schemas_are_in_the_openapi_document(simulated):
    async with simulated.http() as http:
        document = (await http.get("api/v1/openapi.json")).json()

    described = [
        operation.get("summary") and operation.get("description")
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert all(described)
    assert {"SubmitRequest", "WorkloadDetail", "Overview"} <= document["components"][
        "schemas"
    ].keys()


async def test_health_endpoint_is_not_ok_while_scheduler_cycles_fail(simulated, monkeypatch):
    async def fails() -> object:
        raise Unavailable("The scheduler does not answer.")

    async with simulated.http() as http:

        async def status() -> str:
            return str((await http.get("health")).json()["status"])

        async def wait_for_status(to: str) -> None:
            simulated.platform.cluster._change_signal.wake()

            async def has_status() -> bool:
                return await status() == to

            await eventually_async(has_status, what=f"status {to}")

        assert await status() == "ok"
        with monkeypatch.context() as patch:
            patch.setattr(simulated.platform.cluster, "observe", fails)
            await wait_for_status("cycles fail")
        await wait_for_status("ok")
