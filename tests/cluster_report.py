"""A report of a failed test on real nodes: logs, reservations, Events, kubelets' allocations.

The cluster is gone by the time a person reads of the failure.
"""

from __future__ import annotations

from real_nodes.cluster import RealCluster
from runai.hub_service.agent.processes.pod_resources import PodResources

LINES, EVENTS = 60, 80
_KUBECTL_COMMANDS = (
    f"-n runai logs -l app.kubernetes.io/component=service --all-containers --tail {LINES}",
    f"-n runai logs -l app.kubernetes.io/component=agent --prefix --tail {LINES}",
    "get pods --all-namespaces -o wide",
    "-n runai-reservation get pods -o yaml",
)


def cluster_report(cluster: RealCluster) -> str:
    """Return the report as text; call it inside the cluster's network."""
    outputs = [_kubectl_output(cluster, *words.split()) for words in _KUBECTL_COMMANDS]
    events = _kubectl_output(
        cluster, "get", "events", "--all-namespaces", "--sort-by", ".metadata.creationTimestamp"
    )
    outputs.append("\n".join(events.splitlines()[-EVENTS:]))
    return "\n\n".join(
        [*outputs, *(_kubelet_allocations(cluster, number) for number in range(len(cluster.nodes)))]
    )


def _kubectl_output(cluster: RealCluster, *words: str) -> str:
    try:
        output = cluster.plane.kubectl(*words)
    except AssertionError as wrong:
        output = str(wrong)
    return f"$ kubectl {' '.join(words)}\n{output}"


def _kubelet_allocations(cluster: RealCluster, number: int) -> str:
    node = cluster.nodes[number]
    kubelet = PodResources(str(node.place / "lib/kubelet/pod-resources/kubelet.sock"))
    try:
        return f"{node.name}'s kubelet: {kubelet.holders()}"
    except OSError as wrong:
        return f"{node.name}'s kubelet: {wrong}"
    finally:
        kubelet.close()
