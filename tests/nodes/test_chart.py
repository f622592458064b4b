"""The installed chart's own pods on real nodes: their answers, and their replacement."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from control_plane.chart import helm
from nodes_lab import (
    COMES_UP_WITHIN_S,
    NodesLab,
    on_node,
    service_of,
    session,
    training,
    upgrade_chart,
)
from real_nodes.cluster import RealCluster

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]

SERVICE_PODS = "/api/v1/namespaces/runai/pods?labelSelector=app.kubernetes.io/component=service"


def service_pods(cluster: RealCluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.plane.request("GET", SERVICE_PODS)["items"]
    return found


def service_log(cluster: RealCluster) -> str:
    return cluster.plane.kubectl("logs", "-n", "runai", "deploy/runai")


def test_installed_chart_service_starts_without_restarts_or_warnings(cluster: RealCluster):
    (pod,) = service_pods(cluster)
    (container,) = pod["status"]["containerStatuses"]

    assert container["ready"] is True
    assert container["restartCount"] == 0
    assert "leader; listening" in service_log(cluster)
    assert "arning" not in service_log(cluster)  # neither "Warning" nor "warning"


def test_chart_upgrade_restarts_no_container_and_new_service_has_all_jobs(
    lab: NodesLab, cluster: RealCluster, eventually
):
    lab.project("vision", quota=4)
    lab.namespace.create(training("train", project="vision"))
    (pod_before,) = lab.running_pods("train")
    lab.namespace.create(session("half", part="0.5", project="vision", **on_node("node-1")))
    shared = lab.visible_devices("half")
    statuses_before = lab.namespace.pod("half")["status"]["containerStatuses"]
    (old_service_pod,) = service_pods(cluster)

    upgrade_chart(cluster, {"logLevel": "DEBUG"})

    def is_replaced() -> bool:
        names = [pod["metadata"]["name"] for pod in service_pods(cluster)]
        return len(names) == 1 and names != [old_service_pod["metadata"]["name"]]

    eventually(is_replaced, within=COMES_UP_WITHIN_S, what="a new service pod replaces the old one")
    expected_states = {f"{lab.namespace.name}.{name}": "running" for name in ("half", "train")}
    with service_of(cluster.plane) as service:

        def knows_all_jobs() -> bool:
            assert {w.name: w.state for w in service.workloads()} == expected_states
            return True

        eventually(knows_all_jobs, what="the new service knows them")
    lab.namespace.create(session("other-half", part="0.5", project="vision", **on_node("node-1")))
    assert lab.visible_devices("other-half") == shared
    assert lab.namespace.pod("half")["status"]["containerStatuses"] == statuses_before
    (pod_after,) = lab.namespace.pods("train")
    assert pod_after["status"]["containerStatuses"] == pod_before["status"]["containerStatuses"]
    with suppress(AssertionError):  # the exec may die with the container
        lab.plane.kubectl(
            *("exec", "-n", lab.namespace.name, pod_after["metadata"]["name"], "--"),
            *("sh", "-c", "kill -TERM 1"),  # it then exits with 0
        )
    status = eventually(
        lambda: s if (s := lab.namespace.job("train")["status"]).get("succeeded") else None,
        what="the training is complete",
    )
    assert status.get("failed", 0) == 0
    release_status = helm(
        "status", "runai", "--namespace", "runai", kubeconfig=cluster.plane.kubeconfig
    )
    assert "STATUS: deployed" in release_status
