"""A node's agent, the service and an API server: GPU sharing on the kubelet's report alone.

Also the permissions of agents' and workers' pod tokens, as tests/authz.yaml lists them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from authz import ROWS, actual_answer, expected, name_of, request_arguments
from clusters.kubernetes.gpu_sharing import devices_of, fraction_pod
from control_plane.agents import agent_token
from control_plane.device_plugin import DevicePlugin
from control_plane.lab import ClusterLab, allow_jobs
from control_plane.objects import pod
from control_plane.plane import ControlPlane
from kubelet_socket import listening
from ports import free_port
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.client import Client
from runai.hub_service.clusters.kubernetes.objects.job_manifest import AUDIENCE
from runai.hub_service.wire.errors import Forbidden
from runai.hub_service.wire.reports import AgentReport, NodeDevice
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import STARTS_S, Service, kubernetes_service

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def lab(plane: ControlPlane) -> Iterator[ClusterLab]:
    with ClusterLab(plane) as made:
        allow_jobs(plane, made.namespace.name)
        made.node("gpu-0", gpus=2, labels={"nvidia.com/gpu.memory": "16000"})
        made.node("gpu-1")
        yield made


@pytest.fixture(scope="module")
def service(
    lab: ClusterLab, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("place") / "service"
    kubeconfig = plane.service_account("runai", "runai-scheduler")
    made = kubernetes_service(place, kubeconfig, lab.namespace.name, free_port())
    try:
        # It answers, however long its start takes: a report is not sent a second time.
        made.client.overview()
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def agent(url: str, directory: Path, pod_token: str, socket: str) -> Iterator[None]:
    """Run the agent of gpu-0 like its DaemonSet."""
    (directory / "token").write_text(pod_token + "\n")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))},
        "RUNAI_AGENT_TOKEN_FILE": str(directory / "token"),
        "RUNAI_API_URL": url,
        "RUNAI_NODE": "gpu-0",
        "RUNAI_POD_RESOURCES": socket,
        "RUNAI_SIMULATE": "2",
    }
    command = [sys.executable, "-P", "-m", "runai.hub_service.agent"]
    process = subprocess.Popen(command, env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(90)


def test_gpu_halves_are_bound_from_the_kubelets_report_alone(service, lab, eventually, tmp_path):
    uuids = [device.uuid for device in SimulatedDevices(2, node="gpu-0").devices()]
    plugin = DevicePlugin(lab.plane, {"gpu-0": uuids})
    plugin.annotates = False
    for name in ("one", "two"):
        lab.namespace.create(fraction_pod(name, "0.5"))

    def holders() -> dict[str, list[str]]:
        return dict(plugin.has.values())

    def both_are_bound() -> bool:
        plugin.sync_pods()
        return len(devices_of(lab.namespace)) == 2

    def fully_allocated() -> list[str]:
        nodes = {node.name: node for node in service.client.nodes()}
        return [d.uuid for d in nodes["gpu-0"].devices if d.allocated == 1]

    url = service.client.url
    with (
        listening(tmp_path / "kubelet.sock", holders) as socket,
        agent_token(lab.plane, "gpu-0") as token,
        agent(url, tmp_path, token, socket),
    ):
        # This includes the agent's own start.
        eventually(both_are_bound, within=STARTS_S, what="both are bound")
        (device,) = set(devices_of(lab.namespace).values())
        eventually(lambda: fully_allocated() == [device], what="the service lists it")

    assert device in uuids


def test_agent_may_report_about_its_own_node_alone(service, lab):
    url = service.client.url
    report = AgentReport(node="gpu-0", at=0, age=0, interval=1, devices=[], samples=[])
    with agent_token(lab.plane, "gpu-1") as token, Client(url, token, patience_s=120) as agent:
        agent.report(report.model_copy(update={"node": "gpu-1"}))
        with pytest.raises(Forbidden, match="gpu-1"):
            agent.report(report)


def test_agent_of_an_overcommitted_node_gets_existing_devices_only(service, lab, eventually):
    """The pod was bound beyond the node's capacity; its kubelet has not rejected it yet."""
    lab.node("gpu-2", gpus=2)
    lab.namespace.create(pod("beyond", 3, nodeName="gpu-2"))
    eventually(lambda: lab.namespace.node_of("beyond"), what="the pod is bound")
    url = service.client.url
    report = AgentReport(node="gpu-2", at=0, age=0, interval=1, devices=[], samples=[])
    with agent_token(lab.plane, "gpu-2") as token, Client(url, token, patience_s=120) as agent:
        (allocation,) = eventually(lambda: agent.report(report).allocations, what="it is answered")

    assert [share.uuid for share in allocation.shares] == ["gpu-2/0", "gpu-2/1"]


def test_service_orders_device_lists_of_agents_by_pods_age(service, lab):
    """The devices' own age, `pods_age`, decides; `age` includes the wait for the service."""
    url = service.client.url

    def report(uuid: str, **ages: float) -> AgentReport:
        device = NodeDevice(uuid=uuid, name="Fake", memory_mib=16_000)
        return AgentReport(
            node="gpu-1", at=0, interval=1, devices=[], samples=[], pods=(), inventory=(device,)
        ).model_copy(update=ages)

    def listed_uuids() -> list[str]:
        return [d.uuid for node in service.client.nodes() for d in node.devices]

    with agent_token(lab.plane, "gpu-1") as token, Client(url, token, patience_s=120) as agent:
        agent.report(report("GPU-first", age=60))
        agent.report(report("GPU-second", age=3600, pods_age=0))  # seconds
        assert "GPU-second" in listed_uuids()
        agent.report(report("GPU-third", age=0, pods_age=3600))
        assert "GPU-second" in listed_uuids()


# A row for each pair of outcomes, of agent and worker; tests/service/api checks the whole table.
OUTCOMES = {
    ("let in", "let in"): "GET /api/v1/workloads",
    ("let in", "403"): "POST /api/v1/nodes/{node}/samples",
    ("403", "403"): "PUT /api/v1/projects/{name}",
    ("403", "404"): "GET /api/v1/worker/target",
    ("404", "404"): "DELETE /api/v1/workloads/{project}/{name}",
}
OUTCOME_ROWS = [next(row for row in ROWS if row["route"] == route) for route in OUTCOMES.values()]


@pytest.fixture(scope="module")
def clients_by_role(service: Service, lab: ClusterLab) -> Iterator[dict[str, httpx.Client]]:
    """Return clients by role; a job of ana's waits for more GPUs than any node has."""
    request = SubmitRequest(name="exp1", project="vision", owner="ana", gpus=3, command=["true"])
    service.client.submit(request)
    tokens = {
        "agent": agent_token(lab.plane, "gpu-1"),
        "worker": agent_token(lab.plane, "gpu-1", audience=AUDIENCE),
    }
    with contextlib.ExitStack() as opened:
        clients = {}
        for role, token in tokens.items():
            headers = {"Authorization": f"Bearer {opened.enter_context(token)}"}
            url = service.client.url
            client = httpx.Client(base_url=url, headers=headers, timeout=60)
            clients[role] = opened.enter_context(client)
        yield clients
    assert service.client.workload("vision/exp1").state == "queued"
    service.client.delete("vision/exp1")


@pytest.mark.parametrize("row", OUTCOME_ROWS, ids=name_of)
def test_pod_tokens_have_the_rights_of_the_permission_table(clients_by_role, row):
    outcomes = {
        role: actual_answer(clients_by_role[role].request(**request_arguments(row, node="gpu-1")))
        for role in clients_by_role
    }

    assert outcomes == {role: expected(row, role) for role in outcomes}
    assert tuple(outcomes.values()) in OUTCOMES
