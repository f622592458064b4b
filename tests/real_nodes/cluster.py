"""A Kubernetes cluster of real nodes on this machine, for as long as a `with` lasts.

    with RealCluster() as cluster:
        with cluster.network.entered():
            cluster.plane.kubectl("get", "nodes")

A control plane with kube-scheduler, and two nodes with two fake GPUs each, in a network of their
own, ready in seconds. Nothing is left behind; remains of a killed run (empty control groups and a
folder) are removed by the next one. Needs root; see `programs.why_no_nodes`. For tests/nodes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from control_plane.plane import ControlPlane
from fake_driver import compiled_driver
from real_nodes import cgroups
from real_nodes.dns_server import DnsServer
from real_nodes.network import GATEWAY, Network
from real_nodes.node import Node

PLACES = Path("/var/tmp")
PREFIX, LOCK, GROUPS = "runai-nodes-", "lock", "groups"
NODES = 2
LOST_AFTER_S = 20
"""A busy machine delays a kubelet by some seconds, which must not count as a lost node."""


class PlaneOfRealNodes(ControlPlane):
    """A control plane reachable by nodes and pods."""

    host = GATEWAY

    def __init__(self, place: Path) -> None:
        """Keep all files below `place`."""
        super().__init__()
        self.place = place

    def _run_nodes(self) -> None:
        """Run nothing: the nodes have kubelets of their own."""

    def _api_server_flags(self, port: int, etcd: int) -> dict[str, str]:
        self._authority.user("kubelet-client", ["system:masters"]).write(self.folder, "kubelets")
        return super()._api_server_flags(port, etcd) | {
            "advertise-address": self.host,
            "enable-admission-plugins": "NodeRestriction",
            "endpoint-reconciler-type": "lease",
            "kubelet-client-certificate": str(self.folder / "kubelets.crt"),
            "kubelet-client-key": str(self.folder / "kubelets.key"),
            "kubelet-preferred-address-types": "InternalIP",
        }

    def _manager_flags(self, port: int) -> dict[str, str]:
        return super()._manager_flags(port) | {
            "node-monitor-grace-period": f"{LOST_AFTER_S}s",
            "node-monitor-period": "1s",
        }


class RealCluster:
    """A cluster with real nodes."""

    plane: ControlPlane
    network: Network
    nodes: list[Node]

    def __init__(self) -> None:
        """Create the cluster; nothing starts before `with`."""
        self._stack = ExitStack()
        self.place = Path()

    def __enter__(self) -> Self:
        """Start everything; return when the nodes are ready."""
        sweep()
        with self._stack:
            self.place = self._own_place()
            self.network = self._stack.enter_context(Network())
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything, and delete all data."""
        self._stack.close()

    def _start(self) -> None:
        with self.network.entered():
            self.plane = self._stack.enter_context(PlaneOfRealNodes(self.place))
            self._stack.enter_context(DnsServer(self.plane))
            driver = compiled_driver(self.place)
            self.nodes = [
                Node(number, self.plane, self.network, self.place, driver=driver)
                for number in range(NODES)
            ]
            for node in self.nodes:
                self._stack.enter_context(node)
            for node in self.nodes:
                node.until_ready()

    def _own_place(self) -> Path:
        place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACES))
        self._stack.callback(_forget, place)
        place.chmod(0o755)  # pods that are not root mount from below it
        # Lock it before it has its final name, by which other runs find folders to sweep.
        lock = os.open(place / "new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        self._stack.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        (place / GROUPS).write_text("\n".join(map(str, cgroups.below(place.name).values())))
        (place / "new").rename(place / LOCK)
        return place


def sweep() -> None:
    """Remove the remains of killed runs; their processes have died with them."""
    for lock_path in PLACES.glob(f"{PREFIX}*/{LOCK}"):
        lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # it is still running
        else:
            _forget(lock_path.parent)
        finally:
            os.close(lock)


def _forget(place: Path) -> None:
    cgroups.remove(map(Path, (place / GROUPS).read_text().splitlines()))
    shutil.rmtree(place, ignore_errors=True)
