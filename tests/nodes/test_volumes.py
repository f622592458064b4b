"""Volumes that wait for their first pod, on real nodes: local disks, mounted by the kubelet."""

from __future__ import annotations

import pytest

from nodes_lab import NodesLab, mounting, session
from real_nodes.cluster import RealCluster

pytestmark = [pytest.mark.nodes, pytest.mark.cc, pytest.mark.timeout(300)]


def test_pod_is_bound_to_the_node_of_its_local_volume_and_writes_to_it(
    lab: NodesLab, cluster: RealCluster, eventually
):
    """The scheduler would choose node-0; the class has a disk on node-1 alone."""
    lab.project("vision", quota=4)
    name = f"disk-{lab.number}"
    folder = cluster.place / name
    folder.mkdir()
    lab.storage_class(name)
    lab.volume(name, "node-1", of_class=name, local={"path": str(folder)})
    lab.namespace.claim("home", of_class=name)

    lab.namespace.create(mounting(session("s", part="0.5", project="vision"), "home"))
    pod = lab.wait_until_ready("s")

    written_device = eventually((folder / "seen").read_text, what="the pod has written")
    claim = lab.plane.request(
        "GET", f"/api/v1/namespaces/{lab.namespace.name}/persistentvolumeclaims/home"
    )
    assert pod["spec"]["nodeName"] == "node-1"
    assert claim["status"]["phase"] == "Bound"
    assert claim["spec"]["volumeName"] == name
    assert written_device.strip() in {"GPU-1-0", "GPU-1-1"}
