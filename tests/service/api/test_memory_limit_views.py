"""Memory limits in the API: their size, strictness, the processes that use memory, actions."""

from __future__ import annotations

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.api.views.latest_agent_reports import NOTICE_FOR_S, RECENT_S, AgentReports
from runai.hub_service.limits.sharing import TimeSliced
from runai.hub_service.limits.tiers import Tier
from runai.hub_service.wire.reports import AgentReport, Notice, ProcessSample
from runai.hub_service.wire.workload_request import SubmitRequest

DEVICE = SimulatedDevices(1, node="lab").devices()[0].uuid
"""A device of the fixture's node."""


def job(name: str, **fields) -> SubmitRequest:
    return SubmitRequest(name=name, project="vision", command=["true"], **fields)


def notice(workload: str, text: str = "uses too much") -> Notice:
    return Notice(workload=workload, device="GPU-0", at=1.0, rung="notice", text=text)


def process(pid: int, mib: int | None, **more) -> ProcessSample:
    fields = {"workload": "vision/exp1", "worker": "vision/exp1-0", "name": "python3", **more}
    return ProcessSample(
        device=DEVICE, pid=pid, account="ana", utilization=0.1, memory_mib=mib, **fields
    )


def report(at: float = 1.0, **fields) -> AgentReport:
    return AgentReport(node="lab", at=at, interval=1.0, devices=[], samples=[], **fields)


@pytest.mark.parametrize(
    ("fields", "limit_mib"),
    [
        pytest.param({"gpus": "0.5"}, 8192, id="half of a device with 16 GiB"),
        pytest.param({"gpu_memory_mib": 4000}, 4000, id="amount of memory"),
        pytest.param({"gpus": "1"}, None, id="whole device"),
        pytest.param({}, None, id="no device"),
    ],
)
async def test_memory_limit_is_in_the_workload_view_and_the_agents_reply(
    simulated, fields, limit_mib
):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", **fields))
    workload = (await ana.workloads())[0]
    allocations = (await agent.report(report())).allocations

    if limit_mib is None:
        assert workload.limit is None
    else:
        assert workload.limit is not None
        assert (workload.limit.memory_mib, workload.limit.badge) == (limit_mib, "soft limit")
        assert "interrupted, and ended 10 s later" in workload.limit.why
    assert [list(a.limits_mib.values()) for a in allocations] == (
        [[limit_mib]] if limit_mib else [[]]
    )
    assert [a.is_server for a in allocations] == [False]


async def test_workload_view_has_strictest_memory_limit_tier_or_why_it_is_soft(simulated):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    await agent.report(report(no_hard_limit="the driver lets only root set limits"))
    (soft,) = await ana.workloads()
    await agent.report(report(tiers={"vision/exp1": "driver"}))
    (hard,) = await ana.workloads()

    assert soft.limit is not None
    assert soft.limit.why.endswith(
        " A hard limit is not available here: the driver lets only root set limits."
    )
    assert hard.limit is not None
    assert (hard.limit.tier, hard.limit.badge) == ("driver", "hard limit")


class BrokenMps(TimeSliced):
    """A machine where MPS was requested but cannot run."""

    def unavailable_reason(self, device: str) -> str:
        return "its limit is not kept on this machine"


async def test_unavailable_mps_is_explained_in_overview_and_workload(simulated):
    ana, agent, root = [await simulated.client(name) for name in ("ana", "agent", "root")]
    mps_settings = {device.mps for node in await ana.nodes() for device in node.devices}
    assert mps_settings == {None}
    simulated.platform.agent_reports.sharing = BrokenMps()
    assert "MPS is not available on lab: its limit is not kept on this machine." in (
        (await root.overview()).notes
    )
    await ana.submit(job("exp1", gpus="0.5"))
    (soft,) = await ana.workloads()
    await agent.report(report(tiers={"vision/exp1": "mps"}))
    (mps_limited,) = await ana.workloads()

    assert soft.limit is not None
    assert soft.limit.why.endswith(
        " MPS is not available here: its limit is not kept on this machine."
    )
    assert mps_limited.limit is not None
    assert (mps_limited.limit.tier, mps_limited.limit.badge) == ("mps", "soft limit")
    assert mps_limited.limit.why.startswith("CUDA refuses every process more than the share")


async def test_memory_notice_is_in_the_workload_list_and_the_history(simulated):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    await agent.report(report(notices=(notice("vision/exp1"), notice("vision/gone"))))
    (workload,) = await ana.workloads()
    detail = await ana.workload("vision/exp1")

    assert workload.notice == "uses too much"
    assert [e.text for e in detail.history if e.kind == "warning"] == ["uses too much"]


@pytest.mark.parametrize(
    ("rung", "masked_text"),
    [
        ("notice", "uses more than its share of device memory"),
        ("kill", "uses more than its share of device memory: a process of it is killed"),
    ],
)
async def test_memory_notice_hides_program_name_from_unprivileged_roles(
    simulated, rung, masked_text
):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    full_notice = notice("vision/exp1", "uses 9 GiB: secret-exp (77) is killed")
    await agent.report(report(notices=(full_notice.model_copy(update={"rung": rung}),)))

    notices = {
        name: (await (await simulated.client(name)).workloads())[0].notice
        for name in ("ana", "vic", "root", "mia", "ro")
    }

    assert notices == {
        **dict.fromkeys(("ana", "vic", "root"), full_notice.text),
        **dict.fromkeys(("mia", "ro"), masked_text),
    }


async def test_memory_notice_ends_when_the_workload_is_within_its_share_again(simulated):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    await agent.report(report(notices=(notice("vision/exp1"),)))
    back_notice = notice("vision/exp1", "is within its share again").model_copy(
        update={"rung": "back"}
    )
    await agent.report(report(notices=(back_notice,)))

    workload = await ana.workload("vision/exp1")

    assert workload.notice == ""
    assert workload.history[-1].text == "is within its share again"


async def test_workload_owner_sees_gpu_processes_by_memory_with_notebook_names(simulated):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    await agent.report(
        report(
            processes=(
                process(7, 100, notebook="a.ipynb"),
                process(8, 900),
                process(9, None),
                process(10, 5000, workload="nlp/other"),
            )
        )
    )
    detail = await ana.workload("vision/exp1")

    assert [(p.pid, p.name, p.memory_mib) for p in detail.processes] == [
        (8, "python3", 900),
        (7, "a.ipynb", 100),
        (9, "python3", None),
    ]


def test_memory_notices_and_gpu_processes_of_old_agent_reports_expire():
    agent_reports = AgentReports()
    agent_report = report(processes=(process(7, 100),), notices=(notice("vision/exp1"),))
    agent_reports.store(100.0, agent_report, {"vision/exp1"})

    assert agent_reports.notice(100.0 + NOTICE_FOR_S, "vision/exp1") == ""
    assert agent_reports.processes(100.0 + RECENT_S, "vision/exp1") == []
    assert len(agent_reports.processes(100.0 + RECENT_S - 1, "vision/exp1")) == 1


def test_memory_notice_of_killed_workload_is_reported_after_its_end():
    agent_reports = AgentReports()
    agent_reports.store(100.0, report(1.0), {"vision/exp1"})

    new_notices = agent_reports.store(
        101.0, report(2.0, notices=(notice("vision/exp1"), notice("vision/other"))), set()
    )

    assert [item.workload for item in new_notices] == ["vision/exp1"]


def test_delayed_older_agent_report_does_not_replace_a_newer_report():
    agent_reports = AgentReports()
    tiers = {"vision/exp1": "driver", "vision/elsewhere": "driver"}
    agent_reports.store(100.0, report(5.0, tiers=tiers), {"vision/exp1"})
    agent_reports.store(100.0, report(4.0), {"vision/exp1"})

    assert agent_reports.tier("vision/exp1") is Tier.DRIVER
    assert (
        agent_reports.tier("vision/elsewhere") is Tier.FRAMEWORKS
    )  # it has no device of that node
    assert agent_reports.tier("vision/other") is Tier.FRAMEWORKS
