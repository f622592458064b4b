"""The agents' DaemonSet on real nodes: its confinement, and its reports."""

from __future__ import annotations

import ssl

import httpx
import pytest

from nodes_lab import NodesLab, on_node, session
from real_nodes.cluster import RealCluster
from runai.hub_service.client import Client

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]

AGENT_PODS = "/api/v1/namespaces/runai/pods?labelSelector=app.kubernetes.io/component=agent"
PRINT_CAPABILITIES = "grep -h Cap /proc/self/status | cut -f2 | tr -d '\\n'"
COUNT_TOKENS = "ls /var/run/secrets/kubernetes.io 2>&1 | grep -c token"


@pytest.fixture
def agents(cluster: RealCluster, inside: None) -> dict[str, str]:
    """Return the names of the agents' pods, by node."""
    found = cluster.plane.request("GET", AGENT_PODS)["items"]
    return {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in found}


def test_agent_runs_on_each_node_without_restarts(cluster: RealCluster, agents):
    found = cluster.plane.request("GET", AGENT_PODS)["items"]
    containers = [status for pod in found for status in pod["status"]["containerStatuses"]]

    assert sorted(agents) == ["node-0", "node-1"]
    assert [status["restartCount"] for status in containers] == [0, 0]


def test_agent_reports_devices_and_their_pods_as_the_kubelet_does(
    lab: NodesLab, service: Client, cluster: RealCluster, eventually
):
    lab.project("vision", quota=4)
    lab.namespace.create(session("whole", 1, project="vision", **on_node("node-1")))
    device = lab.visible_devices("whole")

    def is_reported() -> bool:
        node = next(node for node in service.nodes() if node.name == "node-1")
        # Unordered: the kubelet chooses the session's device, and that one is listed first.
        assert {(d.uuid, d.memory_mib) for d in node.devices} == {
            (uuid, 15_900)  # 16,000 MiB without the driver's own 100
            for uuid in cluster.nodes[1].devices
        }, node.devices
        session_view = service.workload(f"vision/{lab.namespace.name}.whole")
        uuids = [share.uuid for worker in session_view.workers for share in worker.devices]
        return uuids == [device]

    eventually(is_reported, what="the service lists the session's device")
    expected_records = {f"{lab.namespace.name}/whole": [device]}
    # The kubelet's records may list a pod for a moment longer than it ran.
    eventually(lambda: lab.kubelet_allocations(1) == expected_records, what="the kubelet agrees")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        # Five sets of capabilities, of 16 hexadecimal digits each.
        pytest.param(PRINT_CAPABILITIES, "0" * 5 * 16, id="no capability"),
        pytest.param(COUNT_TOKENS, "0", id="no token of the API"),
        pytest.param(
            "touch /var/here 2>&1 | grep -o 'Read-only'", "Read-only", id="read-only file system"
        ),
        pytest.param("ls /var/lib/kubelet/pod-resources", "kubelet.sock", id="kubelet's socket"),
        pytest.param("ls /var/lib/kubelet", "pod-resources", id="no other file of the kubelet"),
    ],
)
def test_agent_container_has_its_mounts_and_no_privileges(
    cluster: RealCluster, agents, command: str, output: str
):
    words = ["exec", "-n", "runai", agents["node-0"], "--", "sh", "-c", f"{command}; true"]

    assert cluster.plane.kubectl(*words).strip() == output


def test_agent_token_is_refused_by_the_api_server(cluster: RealCluster, agents):
    words = ["exec", "-n", "runai", agents["node-0"], "--", "cat", "/var/run/runai/token"]
    token = cluster.plane.kubectl(*words).strip()
    ca_file = str(cluster.plane.folder / "ca.crt")

    response = httpx.get(
        f"{cluster.plane.address}/api/v1/pods",
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cafile=ca_file),
        trust_env=False,
        timeout=60,
    )

    assert response.status_code == 401
