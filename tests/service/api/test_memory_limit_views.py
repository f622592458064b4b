"""Memory limits in the API: their size, strictness, the processes that use memory, actions."""

from __future__ import annotations

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.api.views.latest_reports import NOTICE_FOR_S, RECENT_S, AgentReports
from runai.hub_service.limits.sharing import TimeSliced
from runai.hub_service.limits.tiers import Tier
from runai.hub_service.wire.agent_reports import AgentReport, Notice, ProcessSample
from runai.hub_service.wire.schemas import SubmitRequest

DEVICE = SimulatedDevices(1, node="lab").devices()[0].uuid
"""A device of the fixture's node."""


def job(name: str, **asked) -> SubmitRequest:
    return SubmitRequest(name=name, project="vision", command=["true"], **asked)


def notice(workload: str, text: str = "uses too much") -> Notice:
    return Notice(workload=workload, device="GPU-0", at=1.0, rung="notice", text=text)


def process(pid: int, mib: int | None, **more) -> ProcessSample:
    told = {"workload": "vision/exp1", "worker": "vision/exp1-0", "name": "python3", **more}
    return ProcessSample(
        device=DEVICE, pid=pid, account="ana", utilization=0.1, memory_mib=mib, **told
    )


def report(at: float = 1.0, **told) -> AgentReport:
    return AgentReport(node="lab", at=at, interval=1.0, devices=[], samples=[], **told)


@pytest.mark.parametrize(
    ("asked", "limit_mib"),
    [
        pytest.param({"gpus": "0.5"}, 8192, id="a fraction"),
        pytest.param({"gpu_memory_mib": 4000}, 4000, id="an amount of memory"),
        pytest.param({"gpus": "1"}, None, id="a whole device has no limit"),
        pytest.param({}, None, id="no device has none"),
    ],
)
async def test_a_workload_shows_its_limit_and_the_agent_is_told_it(simulated, asked, limit_mib):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", **asked))
    shown = (await ana.workloads())[0]
    told = (await agent.report(report())).allocations

    if limit_mib is None:
        assert shown.limit is None
    else:
        assert shown.limit is not None
        assert (shown.limit.memory_mib, shown.limit.badge) == (limit_mib, "soft limit")
        assert "interrupted, and ended 10 s later" in shown.limit.why
    assert [list(a.limits_mib.values()) for a in told] == ([[limit_mib]] if limit_mib else [[]])
    assert [a.is_server for a in told] == [False]


async def test_the_strictest_tier_is_shown_or_why_no_hard_limit_can_be_had(simulated):
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


class Broken(TimeSliced):
    """A machine where MPS was requested but cannot run."""

    def unavailable_reason(self, device: str) -> str:
        return "its limit is not kept on this machine"


async def test_it_is_said_why_mps_cannot_be_had(simulated):
    ana, agent, root = [await simulated.client(name) for name in ("ana", "agent", "root")]
    chosen_by_nobody = {device.mps for node in await ana.nodes() for device in node.devices}
    assert chosen_by_nobody == {None}
    simulated.platform.present.sharing = Broken()
    assert "MPS is not available on lab: its limit is not kept on this machine." in (
        (await root.overview()).notes
    )
    await ana.submit(job("exp1", gpus="0.5"))
    (soft,) = await ana.workloads()
    await agent.report(report(tiers={"vision/exp1": "mps"}))
    (client,) = await ana.workloads()

    assert soft.limit is not None
    assert soft.limit.why.endswith(
        " MPS is not available here: its limit is not kept on this machine."
    )
    assert client.limit is not None
    assert (client.limit.tier, client.limit.badge) == ("mps", "soft limit")
    assert client.limit.why.startswith("CUDA refuses every process more than the share")


async def test_memory_notice_is_shown_and_recorded_in_history(simulated):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    await agent.report(report(notices=(notice("vision/exp1"), notice("vision/gone"))))
    (shown,) = await ana.workloads()
    detail = await ana.workload("vision/exp1")

    assert shown.notice == "uses too much"
    assert [e.text for e in detail.history if e.kind == "warning"] == ["uses too much"]


@pytest.mark.parametrize(
    ("rung", "to_others"),
    [
        ("notice", "uses more than its share of device memory"),
        ("kill", "uses more than its share of device memory: a process of it is killed"),
    ],
)
async def test_memory_notice_hides_program_name_from_unprivileged_roles(simulated, rung, to_others):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    said = notice("vision/exp1", "uses 9 GiB: secret-exp (77) is killed")
    await agent.report(report(notices=(said.model_copy(update={"rung": rung}),)))

    told = {
        name: (await (await simulated.client(name)).workloads())[0].notice
        for name in ("ana", "vic", "root", "mia", "ro")
    }

    assert told == {
        **dict.fromkeys(("ana", "vic", "root"), said.text),
        **dict.fromkeys(("mia", "ro"), to_others),
    }


async def test_memory_notice_ends_when_the_workload_is_within_its_share_again(simulated):
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(job("exp1", gpus="0.5"))
    await agent.report(report(notices=(notice("vision/exp1"),)))
    back = notice("vision/exp1", "is within its share again").model_copy(update={"rung": "back"})
    await agent.report(report(notices=(back,)))

    shown = await ana.workload("vision/exp1")

    assert shown.notice == ""
    assert shown.history[-1].text == "is within its share again"


async def test_owner_sees_processes_by_memory_with_notebook_names(simulated):
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


def test_the_present_ends():
    present = AgentReports()
    told = report(processes=(process(7, 100),), notices=(notice("vision/exp1"),))
    present.store(100.0, told, {"vision/exp1"})

    assert present.notice(100.0 + NOTICE_FOR_S, "vision/exp1") == ""
    assert present.processes(100.0 + RECENT_S, "vision/exp1") == []
    assert len(present.processes(100.0 + RECENT_S - 1, "vision/exp1")) == 1


def test_notice_of_killed_workload_is_reported_after_its_end():
    present = AgentReports()
    present.store(100.0, report(1.0), {"vision/exp1"})

    told = present.store(
        101.0, report(2.0, notices=(notice("vision/exp1"), notice("vision/other"))), set()
    )

    assert [one.workload for one in told] == ["vision/exp1"]


def test_a_report_that_waited_is_not_the_present():
    present = AgentReports()
    tiers = {"vision/exp1": "driver", "vision/elsewhere": "driver"}
    present.store(100.0, report(5.0, tiers=tiers), {"vision/exp1"})
    present.store(100.0, report(4.0), {"vision/exp1"})

    assert present.tier("vision/exp1") is Tier.DRIVER
    assert present.tier("vision/elsewhere") is Tier.FRAMEWORKS  # it has no device of that node
    assert present.tier("vision/other") is Tier.FRAMEWORKS
