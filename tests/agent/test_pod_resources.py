"""The kubelet's list of devices reaches the service, over its real protocol."""

from __future__ import annotations

import asyncio

import pytest

from kubelet_socket import answer, listening
from runai.hub_service.agent.agent import Agent
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.processes.pod_resources import PodResources, read_holders
from runai.hub_service.wire.reports import AgentReply, AgentReport

DEVICES_BY_POD = {"lab/jupyter-ana": ["GPU-a", "GPU-b"], "runai-reservation/gpu-res-1": ["GPU-c"]}


def test_kubelet_returns_the_devices_of_each_pod(tmp_path):
    with listening(tmp_path / "kubelet.sock", lambda: DEVICES_BY_POD) as socket:
        kubelet = PodResources(socket)
        holders = kubelet.holders()
        kubelet.close()

    assert holders == DEVICES_BY_POD


def test_unreachable_kubelet_raises_os_error(tmp_path):
    kubelet = PodResources(str(tmp_path / "kubelet.sock"))
    with pytest.raises(OSError, match="the kubelet does not say who has which devices"):
        kubelet.holders()
    kubelet.close()


def test_kubelet_devices_of_foreign_resources_are_ignored():
    assert read_holders(answer(DEVICES_BY_POD, resource="nvidia.com/mig-1g.10gb")) == {}


@pytest.mark.parametrize("cut_bytes", [1, 5, 40])
def test_truncated_kubelet_reply_is_an_error(cut_bytes):
    with pytest.raises(OSError, match="is not understood"):
        read_holders(answer(DEVICES_BY_POD)[:-cut_bytes])


class RecordingService:
    """A service that records reports."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[AgentReport] = asyncio.Queue()

    async def report(self, report: AgentReport) -> AgentReply:
        self.reports.put_nowait(report)
        return AgentReply(allocations=[])


async def test_agent_reports_the_kubelets_pods_and_the_inventory(tmp_path):
    service = RecordingService()
    devices = SimulatedDevices(2, node="gpu-0")
    with listening(tmp_path / "kubelet.sock", lambda: DEVICES_BY_POD) as socket:
        kubelet = PodResources(socket)
        agent = Agent("gpu-0", devices, service, busy_s=0, idle_s=0, kubelet=kubelet)
        agent_task = asyncio.create_task(agent.run())
        report = await service.reports.get()
        agent_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await agent_task
        kubelet.close()

    assert report.pods is not None
    assert {entry.pod: entry.devices for entry in report.pods} == DEVICES_BY_POD
    assert [d.uuid for d in report.inventory] == [d.uuid for d in devices.devices()]
