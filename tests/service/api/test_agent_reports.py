"""Effects of an agent's reports: the scheduler ignores broken devices, and views show them."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.errors import Forbidden, NotFound
from runai.hub_service.wire.reports import AgentReport, DeviceSample, ProcessSample, UsageSample
from runai.hub_service.wire.workload_request import SubmitRequest

FELL_OFF = "XID 79: GPU has fallen off the bus"


def job(name: str, gpus: str) -> SubmitRequest:
    return SubmitRequest(command=["true"], name=name, gpus=Decimal(gpus))


def report(platform, faults: dict[str, str]) -> AgentReport:
    return AgentReport(
        node="lab",
        at=platform.clock(),
        interval=1.0,
        devices=[
            DeviceSample(device=uuid, utilization=None, memory_mib=None, fault=fault)
            for uuid, fault in faults.items()
        ],
        samples=[],
    )


async def test_broken_device_gets_no_workload_until_it_recovers(simulated):
    ana, agent, root = [await simulated.client(name) for name in ("ana", "agent", "root")]
    uuids = [d.uuid for d in (await ana.nodes())[0].devices]
    await ana.submit(job("there", "0.5"))
    await agent.report(report(simulated.platform, dict.fromkeys(uuids, FELL_OFF)))

    (waiting,) = (await ana.submit(job("waits", "1"))).workloads
    running = await ana.workload("vision/there")
    assert (waiting.state, running.state) == ("queued", "running")
    assert [line.kind for line in running.history][-1] == "fault"
    assert {(d.healthy, d.fault) for d in (await ana.nodes())[0].devices} == {(False, FELL_OFF)}
    assert f"GPU 0 of lab is taken out: {FELL_OFF}." in (await root.overview()).notes

    await agent.report(report(simulated.platform, dict.fromkeys(uuids, "")))
    assert (await ana.wait("vision/waits", waiting.version)).state == "running"


async def test_outdated_fault_report_does_not_mark_device_as_broken(simulated):
    ana, agent = [await simulated.client(name) for name in ("ana", "agent")]
    uuids = [d.uuid for d in (await ana.nodes())[0].devices]
    outdated = report(simulated.platform, dict.fromkeys(uuids, FELL_OFF))

    await agent.report(outdated.model_copy(update={"at": outdated.at - 60, "age": 60.0}))

    assert {d.fault for d in (await ana.nodes())[0].devices} == {""}


async def test_admins_see_accounts_of_gpu_processes_outside_workloads_and_members_see_sums(
    simulated,
):
    ana, agent, root = [await simulated.client(name) for name in ("ana", "agent", "root")]
    await ana.submit(job("mine", "0.5"))
    uuid = (await ana.nodes())[0].devices[0].uuid

    def process(pid: int, workload: str, account: str, mib: int | None) -> ProcessSample:
        return ProcessSample(
            device=uuid, pid=pid, workload=workload, worker="", account=account,
            name="python3", utilization=0.25, memory_mib=mib,
        )  # fmt: skip

    processes = (
        process(1, "vision/mine", "ana", 100),
        process(2, "", "ana", 200),
        process(3, "", "eve", 400),
        process(4, "", "eve", None),
        process(5, "nlp/elsewhere", "nel", 800),
    )
    agent_report = report(simulated.platform, {uuid: ""}).model_copy(
        update={"processes": processes}
    )
    await agent.report(agent_report)

    def unassigned_processes(nodes):
        return [
            (o.account, o.processes, o.utilized, o.memory_mib) for o in nodes[0].devices[0].others
        ]

    # A member sees the sum of all processes of other users: pids 3, 4 and 5.
    assert unassigned_processes(await ana.nodes()) == [("", 3, 0.75, 1200), ("ana", 1, 0.25, 200)]
    assert unassigned_processes(await root.nodes()) == [
        ("ana", 1, 0.25, 200), ("eve", 2, 0.5, 400), ("nel", 1, 0.25, 800),
    ]  # fmt: skip


async def test_agent_report_with_a_line_break_in_a_device_fault_is_refused(simulated):
    body = report(simulated.platform, {"GPU": ""}).model_dump(mode="json")
    body["devices"][0]["fault"] = "two\nlines"
    async with simulated.http("agent") as http:
        reply = await http.post("api/v1/nodes/lab/samples", json=body)

    assert reply.status_code == 400


async def test_agent_token_of_a_node_permits_reports_about_that_node_only(simulated):
    async with AsyncClient(simulated.url, "agent-token") as agent:
        report = AgentReport(node="lab", at=1.0, interval=1.0, devices=[], samples=[])
        await agent.report(report)
        with pytest.raises(Forbidden, match="token of node lab reports about that node alone"):
            await agent.report(report.model_copy(update={"node": "another"}))
    async with AsyncClient(simulated.url, "hub-token") as hub:
        with pytest.raises((Forbidden, NotFound)):
            await hub.report(report)


@pytest.mark.parametrize("clock_error_s", [3600.0, -3600.0], ids=["ahead", "behind"])
async def test_service_clock_dates_reports_of_node_with_wrong_clock(
    simulated, clock_error_s, eventually_async
):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp", "1"))
    uuid = (await ana.nodes())[0].devices[0].uuid
    clock, began = simulated.platform.clock, simulated.platform.clock()
    # The job has its device for the whole interval of 0.1 s.
    await eventually_async(lambda: clock() > began + 0.2)
    agent_report = report(simulated.platform, {uuid: ""}).model_copy(
        update={
            "at": clock() + clock_error_s,
            "age": 0.0,
            "interval": 0.1,
            "samples": [
                UsageSample(workload="vision/exp", device=uuid, utilization=0.5, memory_mib=1)
            ],
        }
    )
    await agent.report(agent_report)

    workload = await ana.workload("vision/exp")
    assert (workload.measured.utilized, workload.measured.utilized_average) == (0.5, 0.5)


async def test_agent_report_is_processed_without_listing_all_workloads(simulated, monkeypatch):
    ana, agent = [await simulated.client(name) for name in ("ana", "agent")]
    await ana.submit(job("there", "0.5"))
    listing_tasks = []
    workloads = simulated.platform.cluster.workloads

    async def list_and_record():
        listing_tasks.append(repr(asyncio.current_task()))
        return await workloads()

    monkeypatch.setattr(simulated.platform.cluster, "workloads", list_and_record)

    await agent.report(report(simulated.platform, {}))

    # The bookkeeping may be processing the submission's changes at this moment.
    assert not any("run_asgi" in task for task in listing_tasks)
    await ana.workloads()
    assert any("run_asgi" in task for task in listing_tasks)
