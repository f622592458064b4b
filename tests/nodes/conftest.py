"""Fixtures of the tests on real nodes, with the chart installed and its pods running for real.

cluster     two nodes with two GPUs each (`real_nodes.cluster`); each test runs inside its network
service     a client of the chart's service, which runs in a pod, with the rights of the spawner
hub         a JupyterHub in a pod beside it, with the users bob and patty
lab         a namespace for one test; the nodes are empty again afterwards

The report of a failed test contains the cluster's state at that moment: logs, reservations, Events
and the kubelets' allocations.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from nodes_hub import NodesHub
from nodes_lab import NodesLab, install_chart, service_of
from real_nodes.cluster import RealCluster
from real_nodes.node import Node
from runai.hub_service.client import Client

LINES, EVENTS = 60, 80
_KUBECTL_COMMANDS = (
    f"-n runai logs -l app.kubernetes.io/component=service --all-containers --tail {LINES}",
    f"-n runai logs -l app.kubernetes.io/component=agent --prefix --tail {LINES}",
    "get pods --all-namespaces -o wide",
    "-n runai-reservation get pods -o yaml",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the cluster's state to the report of a failure, while the cluster exists."""
    report = yield
    cluster = item.funcargs.get("cluster") if isinstance(item, pytest.Function) else None
    if report.failed and report.when == "call" and isinstance(cluster, RealCluster):
        with cluster.network.entered():
            report.sections.append(("the cluster when the test failed", cluster_report(cluster)))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[RealCluster]:
    with RealCluster() as started:
        with started.network.entered():
            install_chart(started)
        yield started


@pytest.fixture(autouse=True)
def inside(cluster: RealCluster) -> Iterator[None]:
    """Run the test in the nodes' network; tests of other folders never enter it."""
    with cluster.network.entered():
        yield


@pytest.fixture
def service(cluster: RealCluster, inside: None) -> Iterator[Client]:
    with service_of(cluster.plane) as client:
        yield client


@pytest.fixture(scope="session")
def hub(cluster: RealCluster) -> Iterator[NodesHub]:
    with cluster.network.entered():
        nodes_hub = NodesHub(cluster.plane)
    yield nodes_hub
    nodes_hub.close()


@pytest.fixture
def lab(cluster: RealCluster, inside: None) -> Iterator[NodesLab]:
    with NodesLab(cluster) as nodes_lab:
        yield nodes_lab


def cluster_report(cluster: RealCluster) -> str:
    """Return the report as text; call it inside the cluster's network."""
    outputs = [_kubectl_output(cluster, *words.split()) for words in _KUBECTL_COMMANDS]
    events = _kubectl_output(
        cluster, "get", "events", "--all-namespaces", "--sort-by", ".metadata.creationTimestamp"
    )
    outputs.append("\n".join(events.splitlines()[-EVENTS:]))
    return "\n\n".join([*outputs, *map(_kubelet_allocations, cluster.nodes)])


def _kubectl_output(cluster: RealCluster, *words: str) -> str:
    try:
        output = cluster.plane.kubectl(*words)
    except AssertionError as wrong:
        output = str(wrong)
    return f"$ kubectl {' '.join(words)}\n{output}"


def _kubelet_allocations(node: Node) -> str:
    try:
        return f"{node.name}'s kubelet: {node.allocations()}"
    except OSError as wrong:
        return f"{node.name}'s kubelet: {wrong}"
