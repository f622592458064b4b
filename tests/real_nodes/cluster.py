"""A Kubernetes cluster of real nodes on this machine, for as long as a `with` lasts.

    with RealCluster() as cluster:
        with cluster.network.entered():
            cluster.plane.kubectl("get", "nodes")

A control plane with kube-scheduler, and two nodes with two fake GPUs each, in a network of their
own, ready in seconds. Nothing is left behind; what a killed run left (empty control groups and a
folder), the next one removes. Needs root; see `programs.why_no_nodes`. Called by tests/nodes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from control_plane.plane import ControlPlane
from real_nodes import cgroups
from real_nodes.names import Names
from real_nodes.network import GATEWAY, Network
from real_nodes.node import CHECKOUT, Node

PLACES = Path("/var/tmp")
PREFIX, LOCK, GROUPS = "runai-nodes-", "lock", "groups"
NODES = 2
LOST_AFTER_S = 20
"""A busy machine holds a kubelet up for some seconds, which is no loss."""


class PlaneOfRealNodes(ControlPlane):
    """A control plane that nodes and pods reach, with the scheduler of Kubernetes."""

    host = GATEWAY

    def __init__(self, place: Path) -> None:
        """Keep everything below `place`."""
        super().__init__()
        self.place = place

    def _nodes(self) -> tuple[str, dict[str, str]]:
        return "kube-scheduler", {
            "kubeconfig": str(self.user("system:kube-scheduler")),
            "leader-elect": "false",
            "secure-port": "0",
        }

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
    """See the module."""

    plane: ControlPlane
    network: Network
    nodes: list[Node]

    def __init__(self) -> None:
        """Start nothing before `with`."""
        self._stack = ExitStack()
        self.place = Path()

    def __enter__(self) -> Self:
        """Start everything; the nodes are ready when this returns."""
        sweep()
        with self._stack:
            self.place = self._own_place()
            self.network = self._stack.enter_context(Network())
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything, and forget it."""
        self._stack.close()

    def _start(self) -> None:
        with self.network.entered():
            self.plane = self._stack.enter_context(PlaneOfRealNodes(self.place))
            self._stack.enter_context(Names(self.plane))
            driver = self._driver()
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
        # Held before it has the name by which others see that there is something to sweep.
        lock = os.open(place / "new", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        self._stack.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        (place / GROUPS).write_text("\n".join(map(str, cgroups.below(place.name).values())))
        (place / "new").rename(place / LOCK)
        return place

    def _driver(self) -> Path:
        library = self.place / "libnvidia-ml.so.1"
        source = CHECKOUT / "tests/agent/fake_nvml.c"
        options = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
        subprocess.run(["cc", *options, "-o", str(library), str(source)], check=True)
        return library


def sweep() -> None:
    """Remove what killed runs left; their processes went with them."""
    for held in PLACES.glob(f"{PREFIX}*/{LOCK}"):
        lock = os.open(held, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # it runs
        else:
            _forget(held.parent)
        finally:
            os.close(lock)


def _forget(place: Path) -> None:
    cgroups.remove(map(Path, (place / GROUPS).read_text().splitlines()))
    shutil.rmtree(place, ignore_errors=True)
