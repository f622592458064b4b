"""The kubelet's list of devices reaches the service, over its real protocol."""

from __future__ import annotations

import asyncio

import pytest

from kubelet_socket import answer, listening
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.loop import Agent
from runai.hub_service.agent.processes.pod_resources import PodResources, read_holders
from runai.hub_service.wire.agent_reports import AgentReply, AgentReport

PODS = {"lab/jupyter-ana": ["GPU-a", "GPU-b"], "runai-reservation/gpu-res-1": ["GPU-c"]}


def test_kubelet_returns_the_devices_of_each_pod(tmp_path):
    with listening(tmp_path / "kubelet.sock", lambda: PODS) as socket:
        kubelet = PodResources(socket)
        found = kubelet.holders()
        kubelet.close()

    assert found == PODS


def test_a_kubelet_that_is_away_is_asked_again(tmp_path):
    kubelet = PodResources(str(tmp_path / "kubelet.sock"))
    with pytest.raises(OSError, match="the kubelet does not say who has which devices"):
        kubelet.holders()
    kubelet.close()


def test_devices_of_other_kinds_are_left_out():
    assert read_holders(answer(PODS, resource="nvidia.com/mig-1g.10gb")) == {}


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_half_an_answer_is_none(cut):
    with pytest.raises(OSError, match="is not understood"):
        read_holders(answer(PODS)[:-cut])


class Service:
    """A service that records reports."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[AgentReport] = asyncio.Queue()

    async def report(self, report: AgentReport) -> AgentReply:
        self.reports.put_nowait(report)
        return AgentReply(allocations=[])


async def test_the_agent_tells_the_service(tmp_path):
    service = Service()
    devices = SimulatedDevices(2, node="gpu-0")
    with listening(tmp_path / "kubelet.sock", lambda: PODS) as socket:
        kubelet = PodResources(socket)
        agent = Agent("gpu-0", devices, service, busy_s=0, idle_s=0, kubelet=kubelet)
        running = asyncio.create_task(agent.run())
        report = await service.reports.get()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        kubelet.close()

    assert report.pods is not None
    assert {of.pod: of.devices for of in report.pods} == PODS
    assert [d.uuid for d in report.inventory] == [d.uuid for d in devices.devices()]
