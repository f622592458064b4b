"""An agent's own Prometheus metrics: a real agent, scraped by HTTP and by a real Prometheus."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from prometheus import prometheus
from runai.hub_service.agent.__main__ import AgentSettings
from runai.hub_service.agent.agent import LoopCounters
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.metrics import NodeMetricsCollector
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.reports import AgentReport
from waiting import eventually_async

AGENT_COMMAND = [sys.executable, "-P", "-m", "runai.hub_service.agent"]
AGENT_ENVIRONMENT = {
    "RUNAI_API_URL": "http://127.0.0.1:9/services/runai/",  # no server listens there
    "RUNAI_AGENT_TOKEN": "not-to-be-told",
    "RUNAI_NODE": "here",
    "RUNAI_SIMULATE": "2",
}
DEVICE_UUIDS = [device.uuid for device in SimulatedDevices(2, node="here").devices()]


@contextmanager
def running_agent(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(AGENT_COMMAND, env=os.environ | AGENT_ENVIRONMENT | environment) as agent:
        yield agent
        agent.terminate()


async def scrape(address: str) -> str:
    async with httpx.AsyncClient(timeout=60) as http:
        try:
            reply = await http.get(f"http://{address}/metrics")
        except httpx.TransportError as error:
            raise AssertionError(error) from error
    assert "runai_agent_device" in reply.text, "nothing is measured yet"
    return reply.text


async def test_agent_serves_metrics_while_the_service_is_unreachable(free_port):
    address = f"127.0.0.1:{free_port()}"
    with running_agent(RUNAI_AGENT_METRICS=address) as agent:
        text = await eventually_async(lambda: scrape(address))
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]

    devices = [s.labels for s in samples if s.name == "runai_agent_device_utilization_ratio"]
    node_values = {s.name: s.value for s in samples if s.labels == {"node": "here"}}
    process_values = {s.name: s.value for s in samples if not s.labels}
    assert sorted(devices, key=lambda labels: labels["device"]) == [
        {"node": "here", "device": uuid} for uuid in sorted(DEVICE_UUIDS)
    ]
    assert node_values["runai_agent_polls_total"] >= 1
    assert node_values["runai_agent_reports_sent_total"] == 0
    assert process_values["process_cpu_seconds_total"] > 0
    assert agent.returncode == 0


@pytest.mark.prometheus
async def test_agent_metrics_follow_conventions_and_prometheus_reads_them(tmp_path, free_port):
    address = f"127.0.0.1:{free_port()}"
    source = {"static_configs": [{"targets": [address]}]}
    with running_agent(RUNAI_AGENT_METRICS=address):
        text = await eventually_async(lambda: scrape(address))
        checked = await asyncio.create_subprocess_exec(
            "promtool", "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
        )
        complaints, _ = await checked.communicate(text.encode())
        async with prometheus(source, tmp_path, free_port()) as query:
            series = await eventually_async(
                lambda: query("runai_agent_device_healthy == 1"), within=60
            )

    assert complaints.decode() == ""
    assert {entry["metric"]["device"] for entry in series} == set(DEVICE_UUIDS)


def test_agent_metrics_name_no_workload_user_or_process():
    process = {"device": "GPU", "pid": 77_777, "workload": "vision/secret", "worker": "w-secret"}
    sample = {"workload": "vision/secret", "device": "GPU", "utilization": 0.5, "memory_mib": 1}
    report = AgentReport.model_validate(
        {
            "node": "here", "at": 5.0, "interval": 1.0, "samples": [sample],
            "devices": [{"device": "GPU", "utilization": 0.5, "memory_mib": 1}],
            "processes": [process | {"account": "secret", "name": "secret", "utilization": 0.5,
                                     "memory_mib": 1}],
        }
    )  # fmt: skip
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeMetricsCollector("here", LoopCounters(last_report=report)))
    text = generate_latest(registry).decode()

    assert 'runai_agent_device_processes{device="GPU",node="here"} 1.0' in text
    assert "secret" not in text
    assert "77777" not in text


def test_metrics_address_in_use_does_not_stop_metering():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        environment = os.environ | AGENT_ENVIRONMENT | {"RUNAI_AGENT_METRICS": address}
        with subprocess.Popen(AGENT_COMMAND, env=environment, stderr=PIPE, text=True) as agent:
            assert agent.stderr is not None
            log_lines = [agent.stderr.readline(), agent.stderr.readline()]
            agent.terminate()

    assert f"cannot serve metrics on {address}" in log_lines[0]
    assert "the service does not respond; reports are queued" in log_lines[1]


@pytest.mark.parametrize("address", ["9410", ":9410", "here:", "here:port", "here:0", "here:65536"])
def test_invalid_agent_metrics_address_is_refused(address):
    with pytest.raises(InvalidRequest, match="RUNAI_AGENT_METRICS is"):
        AgentSettings.parse(AGENT_ENVIRONMENT | {"RUNAI_AGENT_METRICS": address})


def test_ipv6_metrics_address_is_parsed_from_brackets():
    settings = AgentSettings.parse(AGENT_ENVIRONMENT | {"RUNAI_AGENT_METRICS": "[::1]:9410"})

    assert settings.metrics == ("::1", 9410)
