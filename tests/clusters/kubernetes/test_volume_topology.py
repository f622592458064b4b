"""Volumes that wait for their first pod: their node is chosen with the pod's, and comes first."""

from __future__ import annotations

from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import wait_message
from control_plane.objects import pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

ZONE = "topology.kubernetes.io/zone"
HOME = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}


@pytest.fixture
def two_zones(lab):
    """Two nodes in zones of their own, and a class of local disks."""
    for name in ("gpu-0", "gpu-1"):
        lab.node(name, gpus=1, labels={ZONE: f"zone-of-{name}"})
    lab.project("vision", quota=2)
    lab.storage_class("local")
    return lab


def claim(lab) -> dict[str, Any]:
    path = f"/api/v1/namespaces/{lab.namespace.name}/persistentvolumeclaims/home"
    found: dict[str, Any] = lab.plane.request("GET", path)
    return found


def selected(lab) -> str:
    notes = claim(lab)["metadata"].get("annotations", {})
    return str(notes.get("volume.kubernetes.io/selected-node", ""))


def with_home(name: str) -> dict[str, Any]:
    return pod(name, project="vision", volumes=[HOME])


def test_pod_is_bound_to_the_node_with_a_free_disk(two_zones, kubeconfig, eventually):
    two_zones.volume("disk-1", "gpu-1", of_class="local")
    two_zones.namespace.claim("home", of_class="local")
    two_zones.namespace.create(with_home("notebook"))

    with Scheduler(kubeconfig):
        eventually(lambda: two_zones.namespace.node_of("notebook"), what="the pod is bound")

    assert two_zones.namespace.node_of("notebook") == "gpu-1"
    assert (claim(two_zones)["status"]["phase"], claim(two_zones)["spec"]["volumeName"]) == (
        "Bound",
        "disk-1",
    )


def test_pod_is_bound_after_a_volume_is_provisioned_for_its_node(two_zones, kubeconfig, eventually):
    topology = [{"matchLabelExpressions": [{"key": ZONE, "values": ["zone-of-gpu-1"]}]}]
    two_zones.storage_class("cloud", "example.com/disks", allowedTopologies=topology)
    two_zones.namespace.claim("home", of_class="cloud")
    two_zones.namespace.create(with_home("notebook"))

    with Scheduler(kubeconfig):
        eventually(lambda: selected(two_zones) == "gpu-1", what="a node is chosen")
        eventually(
            lambda: "until its volume home" in wait_message(two_zones.namespace.pod("notebook")),
            what="the pod waits for its volume",
        )
        assert two_zones.namespace.node_of("notebook") == ""
        two_zones.namespace.create(pod("other", project="vision"))
        eventually(
            lambda: two_zones.namespace.node_of("other") == "gpu-0",
            what="the first pod's place is reserved",
        )
        # The volume that the class's provisioner would create.
        metadata = claim(two_zones)["metadata"]
        owner = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "name": "home"}
        owner |= {"namespace": metadata["namespace"], "uid": metadata["uid"]}
        two_zones.volume("made", "gpu-1", of_class="cloud", claimRef=owner)
        eventually(lambda: two_zones.namespace.node_of("notebook") == "gpu-1", what="it is bound")
