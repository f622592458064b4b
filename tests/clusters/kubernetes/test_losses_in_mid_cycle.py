"""The API server or the leading scheduler is lost between two bindings of one gang.

A witness watches every change of every pod: no device is given twice, no node overcommitted.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from typing import Any

import pytest

from control_plane.faults import FaultyServer
from control_plane.lab import ClusterLab
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from control_plane.witness import Witness

pytestmark = pytest.mark.kubernetes

SECOND_BINDING = ("POST", "/pods/gang-1-")
"""The binding of the gang's second worker."""


@pytest.fixture
def gang_lab(lab: ClusterLab) -> ClusterLab:
    """Return a lab with GPUs for exactly one gang of three."""
    lab.node("gpu-0", gpus=2)
    lab.node("gpu-1", gpus=1)
    lab.project("vision", quota=3)
    return lab


def nodes_by_uid(lab: ClusterLab) -> dict[str, str]:
    """Return the node of each of the gang's pods, by UID."""
    found = lab.namespace.pods("gang")
    return {p["metadata"]["uid"]: p["spec"].get("nodeName", "") for p in found}


def is_whole(lab: ClusterLab) -> bool:
    nodes = sorted(nodes_by_uid(lab).values())
    return nodes == ["gpu-0", "gpu-0", "gpu-1"]


def assert_next_job_waits(lab: ClusterLab, eventually: Callable[..., Any]) -> None:
    """Assert that the next Job is told to wait: the gang's devices count as allocated."""
    # A Job, because the gang would be stopped for a single pod, which is a session.
    lab.namespace.create(job("next", project="vision"))
    conditions = eventually(
        lambda: [
            c
            for found in lab.namespace.pods("next")
            for c in found["status"].get("conditions", ())
            if c["type"] == "PodScheduled"
        ],
        what="the next Job's pod has a condition",
    )
    assert conditions[0]["status"] == "False"


def assert_gang_becomes_whole(
    lab: ClusterLab, pod_uids: KeysView[str], witness: Witness, eventually: Callable[..., Any]
) -> None:
    """Assert that the pods `pod_uids` before the loss are bound, and the next Job waits."""
    eventually(lambda: is_whole(lab), what="the gang is whole")
    assert_next_job_waits(lab, eventually)
    eventually(lambda: witness.bound >= pod_uids, what="the witness has seen it")

    assert nodes_by_uid(lab).keys() == pod_uids, "no pod was lost or recreated"


def test_gang_becomes_whole_after_an_api_server_outage_between_its_bindings(
    gang_lab, kubeconfig, witness, eventually
):
    """The scheduler's connections break with it: the results of its other calls are unknown."""
    with (
        FaultyServer(kubeconfig) as server,
        Scheduler(server.kubeconfig) as scheduler,
    ):
        eventually(lambda: scheduler.cycles, what="the scheduler watches")
        server.die_at(*SECOND_BINDING)
        gang_lab.namespace.create(job("gang", workers=3, gang=True, project="vision"))
        eventually(lambda: server.is_down, what="the API server is down")
        server.cut()
        gang_lab.plane.restart("kube-apiserver")
        pod_uids = nodes_by_uid(gang_lab).keys()
        server.revive()
        assert_gang_becomes_whole(gang_lab, pod_uids, witness, eventually)


def test_gang_becomes_whole_after_the_leader_is_killed_between_bindings(
    gang_lab, kubeconfig, witness, eventually
):
    with (
        FaultyServer(kubeconfig) as server,
        Scheduler(server.kubeconfig, candidate="first") as first,
    ):
        eventually(lambda: first.cycles, what="the first leads")
        with Scheduler(kubeconfig, candidate="second") as second:
            server.die_at(*SECOND_BINDING)
            gang_lab.namespace.create(job("gang", workers=3, gang=True, project="vision"))
            eventually(lambda: server.is_down, what="the first is cut off")
            server.cut()
            pod_uids = nodes_by_uid(gang_lab).keys()
            assert_gang_becomes_whole(gang_lab, pod_uids, witness, eventually)
            # The bindings of a cycle are visible before the cycle is over.
            eventually(lambda: second.cycles, what="the second leads")


def test_witness_of_pod_changes_fails_on_an_overcommitted_node(gang_lab, eventually):
    pod_witness = Witness(gang_lab.plane)
    pod_witness.__enter__()
    for name in ("one", "two"):
        gang_lab.namespace.create(pod(name, nodeName="gpu-1"))
    eventually(lambda: pod_witness.violations, what="the witness has seen both")

    with pytest.raises(AssertionError, match="gpu-1 has 1 GPUs, and 2 are given"):
        pod_witness.__exit__(None)
