"""An agent that the service did not start: a process of its own, with the token of its node.

The same program and the same API as on other machines: nothing of it is the service's child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runai.hub_service.api.reports import AgentReport
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.client import AsyncClient, Client
from runai.hub_service.errors import Forbidden, NotFound
from waiting import eventually

HUB_TOKEN, NODE_TOKEN = "the-hubs-token", "the-nodes-token"
PROJECTS = "projects: {vision: {quota: 1, members: [ana]}}"
IMPORTS_S = 120
"""A busy machine imports for half a minute."""


def is_an_agent(process: psutil.Process) -> bool:
    try:
        return "runai.hub_service.agent" in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


class Machine:
    """A service and an agent, each started by the test alone."""

    def __init__(self, directory: Path, port: int, metrics_port: int) -> None:
        (directory / "projects.yaml").write_text(PROJECTS)
        self.root = f"http://127.0.0.1:{port}/services/runai/"
        self.metrics = f"127.0.0.1:{metrics_port}"
        self.hub = Client(self.root, HUB_TOKEN, patience_s=120)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))}
        self._ours = kept | {"RUNAI_SIMULATE": "1", "RUNAI_AGENT_TOKEN": NODE_TOKEN}
        self._services = {
            "RUNAI_DATA_DIR": str(directory / "data"),
            "RUNAI_HUB_TOKEN": HUB_TOKEN,
            "RUNAI_PROJECTS": str(directory / "projects.yaml"),
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        }
        self._log = (directory / "log").open("ab")
        self.service = self.start_service()
        (node,) = self.hub.nodes()
        self.node = node.name
        self.agent = self._start("runai.hub_service.agent", self._agents())

    def start_service(self) -> subprocess.Popen[bytes]:
        return self._start("runai.hub_service", self._services)

    def _agents(self) -> dict[str, str]:
        return {
            "RUNAI_API_URL": self.root,
            "RUNAI_NODE": self.node,
            "RUNAI_AGENT_METRICS": self.metrics,
        }

    def _start(self, module: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", module]
        return subprocess.Popen(
            command, env=self._ours | environment, stdout=self._log, stderr=self._log
        )

    def utilized(self) -> float:
        """Return what the service knows of the job; it must have been measured."""
        measured = self.hub.workload("vision/busy").utilized
        assert measured is not None
        return measured

    def reports(self, of: str) -> float:
        """Return what the agent says of its reports: sent, waiting or dropped."""
        told = httpx.get(f"http://{self.metrics}/metrics", timeout=60).text
        (value,) = (
            sample.value
            for family in text_string_to_metric_families(told)
            for sample in family.samples
            if sample.name in {f"runai_agent_reports_{of}", f"runai_agent_reports_{of}_total"}
        )
        return value

    def close(self) -> None:
        self.hub.delete("vision/busy")
        eventually(lambda: self.hub.workloads() == [])
        for process in (self.agent, self.service):
            process.terminate()
            process.wait(60)
        self.hub.close()
        self._log.close()


@pytest.fixture
def machine(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Machine]:
    started = Machine(tmp_path, free_port(), free_port())
    busy = [sys.executable, "-c", "while True: pass"]
    started.hub.submit(SubmitRequest(name="busy", owner="ana", command=busy, gpus=1))
    yield started
    started.close()


def test_it_reports_buffers_while_the_service_is_away_and_delivers_then(machine):
    children = psutil.Process(machine.service.pid).children(recursive=True)
    assert not any(map(is_an_agent, children))
    eventually(machine.utilized, within=IMPORTS_S, what="the agent's reports count")

    machine.service.send_signal(signal.SIGKILL)
    machine.service.wait()
    eventually(lambda: machine.reports("waiting") > 3, what="reports wait for the service")
    sent = machine.reports("sent")
    machine.service = machine.start_service()

    eventually(lambda: machine.reports("waiting") == 0, within=120, what="what waited is delivered")
    assert machine.reports("sent") > sent + 3
    assert machine.reports("dropped") == 0
    eventually(machine.utilized, what="its reports count again")
    assert machine.agent.poll() is None


def test_its_token_reports_of_its_node_and_can_do_nothing_else(machine):
    headers = {"Authorization": f"Bearer {NODE_TOKEN}"}
    with httpx.Client(base_url=machine.root, headers=headers, timeout=60) as http:
        document = http.get("api/v1/openapi.json").raise_for_status().json()

        def asked(method: str, path: str) -> int:
            below = path.removeprefix("/services/runai/")
            named = below.format(project="vision", name="busy", node=machine.node, kind="user")
            return http.request(method, named, json={}).status_code

        answers = {
            (method, path.removeprefix("/services/runai/")): asked(method, path)
            for path, methods in document["paths"].items()
            for method in methods
        }
        seen = http.get("api/v1/workloads").json()

    # Let in, though an empty report is none.
    assert answers.pop(("post", "api/v1/nodes/{node}/samples")) == httpx.codes.BAD_REQUEST
    assert {route for route, status in answers.items() if status < httpx.codes.BAD_REQUEST} == {
        ("get", "api/v1/whoami"),
        ("get", "api/v1/workloads"),  # those that it may see: none
    }
    assert seen == []
    assert machine.hub.workload("vision/busy").state in {"queued", "starting", "running"}


async def test_a_node_reports_of_itself_alone(simulated):
    async with AsyncClient(simulated.url, "agent-token") as agent:
        report = AgentReport(node="lab", at=1.0, interval=1.0, devices=[], samples=[])
        await agent.report(report)
        with pytest.raises(Forbidden, match="token of node lab reports about that node alone"):
            await agent.report(report.model_copy(update={"node": "another"}))
    async with AsyncClient(simulated.url, "hub-token") as hub:
        with pytest.raises((Forbidden, NotFound)):
            await hub.report(report)
