"""Metering end to end: two sessions share a device with a process outside the platform.

The real service with its real agent, on the fake library. The agent is stopped in the middle, so
that all readers see the same sample: API, panel, command line and metrics must agree.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from fake_driver import compiled_driver
from runai.hub_service.cli.framework.command_list import cli
from runai.hub_service.wire.device_schemas import OthersView
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import TOKEN, Service
from waiting import eventually

GPU_UUID = "GPU-0aaaaaaa-0000-0000-0000-000000000000"
UTILIZATION_BY_USER = {"ana": 0.4, "bo": 0.25}
PROJECTS_FILE = "projects: {vision: {quota: 1, members: [ana, bo]}}"


class Platform:
    """A service with its agent on one device, and two sessions on it."""

    def __init__(self, directory: Path, port: int, **environment: str) -> None:
        self.service = Service(directory, port, PROJECTS_FILE, environment)
        self.client = self.service.client
        self.service.process = self.service.popen()

    def start_session(self, user: str, process: psutil.Process) -> None:
        """Start half a device's session, and attach `process` to it."""
        request = SubmitRequest(name=f"lab-{user}", kind="session", owner=user, gpus=0.5)  # type: ignore[arg-type]
        (workload,) = self.client.submit(request).workloads
        while not workload.allocated:
            workload = self.client.wait(workload.id, workload.version, 10)
        report = ProcessReport(pid=process.pid, created=process.create_time())
        self.client.attach(workload.id, report)

    @contextlib.contextmanager
    def suspended_agent(self) -> Iterator[None]:
        """Stop the agent for the block, so that no newer sample arrives."""
        agent = self.service.agent()
        assert agent is not None
        agent.suspend()
        try:
            yield
        finally:
            agent.resume()

    def runai(self, *arguments: str) -> Any:
        environment = {"RUNAI_API_URL": self.client.url, "JUPYTERHUB_API_TOKEN": TOKEN}
        result = CliRunner(env=environment).invoke(cli, [*arguments, "-o", "json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def metric(self, name: str, **labels: str) -> float:
        reply = httpx.get(
            f"{self.client.url}metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60
        )
        (value,) = (
            sample.value
            for family in text_string_to_metric_families(reply.text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
        return value

    def close(self) -> None:
        self.client.close()
        self.service.stop(signal.SIGTERM)


@pytest.fixture
def nvml_folder(tmp_path: Path, nvml) -> Path:
    """Compile the library with the path of its state: the agent gets no environment variable."""
    folder = tmp_path / "lib"
    folder.mkdir()
    compiled_driver(folder, nvml.path)
    return folder


def usage_by_workload(platform: Platform, uuid: str) -> dict[str, set[tuple[float, int]]]:
    """Return each session's load and memory from every place that shows them."""
    device_load = platform.metric("runai_device_utilization_ratio", device=uuid)
    (node,) = platform.client.nodes()
    (listed,) = platform.runai("list", "nodes")
    panel = platform.client.overview()
    assert device_load == node.devices[0].utilized == listed["devices"][0]["utilized"]
    assert panel.nodes[0].devices[0] == node.devices[0]
    rows = [
        *(
            (w.id, w.measured.utilized, w.measured.memory_used_mib)
            for w in platform.client.workloads()
        ),
        *((w.id, w.measured.utilized, w.measured.memory_used_mib) for w in panel.workloads),
        *(
            (w["id"], *[w["measured"][name] for name in ("utilized", "memory_used_mib")])
            for w in platform.runai("top", "jobs")
        ),
    ]
    usage: dict[str, set[tuple[float, int]]] = {}
    for workload, utilized, memory_mib in rows:
        assert utilized is not None
        assert memory_mib is not None
        usage.setdefault(workload, set()).add((utilized, memory_mib))
    for workload, values in usage.items():
        name = workload.partition("/")[2]
        memory = platform.metric("runai_workload_memory_used_bytes", workload=name)
        busy = platform.metric("runai_workload_gpus_utilized", workload=name)
        values.add((busy, int(memory) >> 20))
    return usage


@pytest.mark.cc
def test_gpu_usage_is_equal_in_api_cli_and_metrics_beside_a_foreign_process(
    tmp_path, nvml_folder, nvml, start, free_port
):
    ana_process, bo_process, foreign_process = start(), start(), start()
    gpu = f"gpu {GPU_UUID} 143771 600 30600 70 H200"  # total, reserved, used MiB; load in %
    nvml.write(gpu)
    platform = Platform(tmp_path, free_port(), LD_LIBRARY_PATH=str(nvml_folder))
    try:
        platform.start_session("ana", ana_process)
        platform.start_session("bo", bo_process)

        def consistent_usage() -> tuple[dict[str, set[tuple[float, int]]], OthersView]:
            stamp = time.time_ns() // 1000
            nvml.write(
                gpu,
                f"proc 0 {ana_process.pid} 20000 C", f"sample 0 {ana_process.pid} {stamp} 40",
                f"proc 0 {bo_process.pid} 10000 C", f"sample 0 {bo_process.pid} {stamp} 25",
                f"proc 0 {foreign_process.pid} 600 C",
                f"sample 0 {foreign_process.pid} {stamp} 5",
            )  # fmt: skip
            # Not yet, if a session was not measured or a poll saw no new sample.
            assert {
                w.user: w.measured.utilized for w in platform.client.workloads()
            } == UTILIZATION_BY_USER
            with platform.suspended_agent():
                usage = usage_by_workload(platform, GPU_UUID)
                (foreign,) = platform.client.nodes()[0].devices[0].others
                assert usage["vision/lab-ana"] == {(0.4, 20000)}
            return usage, foreign

        agreed_usage, foreign_usage = eventually(consistent_usage, within=120)
        assert agreed_usage["vision/lab-bo"] == {(0.25, 10000)}
        assert foreign_usage.processes == 1
        assert (foreign_usage.utilized, foreign_usage.memory_mib) == (0.05, 600)
    finally:
        platform.close()
