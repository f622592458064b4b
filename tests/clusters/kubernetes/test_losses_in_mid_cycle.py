"""What is lost between two bindings of one gang: the API server, or the scheduler that leads.

A witness sees every change of every pod meanwhile: nothing is given twice, or beyond a node.
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

LEASE = "/apis/coordination.k8s.io/v1/namespaces/runai/leases/runai-scheduler"
SECOND = ("POST", "/pods/gang-1-")
"""The binding of its second worker."""


@pytest.fixture
def gang(lab: ClusterLab) -> ClusterLab:
    """Return a lab whose GPUs are enough for a gang of three, and for nobody beside it."""
    lab.node("gpu-0", gpus=2)
    lab.node("gpu-1", gpus=1)
    lab.project("vision", quota=3)
    return lab


def pods(lab: ClusterLab) -> dict[str, str]:
    """Return where the gang's pods are, by UID."""
    found = lab.namespace.pods("gang")
    return {p["metadata"]["uid"]: p["spec"].get("nodeName", "") for p in found}


def is_whole(lab: ClusterLab) -> bool:
    nodes = sorted(pods(lab).values())
    return nodes == ["gpu-0", "gpu-0", "gpu-1"]


def and_the_next_waits(lab: ClusterLab, eventually: Callable[..., Any]) -> None:
    """See that whoever comes after it is told to wait: its devices are known to be taken."""
    # A Job: a pod by itself is a session, for which the gang would be stopped.
    lab.namespace.create(job("next", project="vision"))
    conditions = eventually(
        lambda: [
            c
            for found in lab.namespace.pods("next")
            for c in found["status"].get("conditions", ())
            if c["type"] == "PodScheduled"
        ],
        what="the next one is told why it waits",
    )
    assert conditions[0]["status"] == "False"


def ends_whole(
    lab: ClusterLab, made: KeysView[str], witness: Witness, eventually: Callable[..., Any]
) -> None:
    """See that the gang's pods, which were `made` before the loss, are all bound; and who waits."""
    eventually(lambda: is_whole(lab), what="the gang is whole")
    and_the_next_waits(lab, eventually)
    eventually(lambda: witness.bound >= made, what="the witness has seen it")

    assert pods(lab).keys() == made, "no pod was lost, and none made again"


def test_an_api_server_that_is_gone_before_the_second_binding_of_a_gang(
    gang, rights, witness, eventually
):
    """The scheduler's connections break with it: it does not know what became of the others."""
    with (
        FaultyServer(rights) as server,
        Scheduler(server.kubeconfig) as scheduler,
    ):
        eventually(lambda: scheduler.cycles, what="it watches")
        server.die_at(*SECOND)
        gang.namespace.create(job("gang", workers=3, gang=True, project="vision"))
        eventually(lambda: server.is_down, what="it is gone")
        server.cut()
        gang.plane.restart("kube-apiserver")
        made = pods(gang).keys()
        server.revive()
        ends_whole(gang, made, witness, eventually)


def test_a_leader_that_is_killed_at_the_second_binding_of_a_gang(gang, rights, witness, eventually):
    gang.forget(LEASE)
    with (
        FaultyServer(rights) as server,
        Scheduler(server.kubeconfig, candidate="first") as first,
    ):
        eventually(lambda: first.cycles, what="the first leads")
        with Scheduler(rights, candidate="second") as second:
            server.die_at(*SECOND)
            gang.namespace.create(job("gang", workers=3, gang=True, project="vision"))
            eventually(lambda: server.is_down, what="the first is cut off")
            server.cut()
            made = pods(gang).keys()
            ends_whole(gang, made, witness, eventually)
            # What its cycle did is seen before it is over.
            eventually(lambda: second.cycles, what="the second leads")
    gang.forget(LEASE)


def test_the_witness_would_say_so(gang, eventually):
    watching = Witness(gang.plane)
    watching.__enter__()
    for name in ("one", "two"):
        gang.namespace.create(pod(name, nodeName="gpu-1"))
    eventually(lambda: watching.saw, what="it has seen both")

    with pytest.raises(AssertionError, match="gpu-1 has 1 GPUs, and 2 are given"):
        watching.__exit__(None)
