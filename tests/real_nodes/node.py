"""One real node: kubelet, containerd and runc in namespaces of their own, with fake GPUs.

    with Node(0, cluster...) as node:
        node.restart_kubelet()
        node.lose()          # a power loss
        node.begin()         # and power again

Only its processes are visible outside of its namespaces, and they end with the process that started
them. Each container sees, read-only, this machine's /usr, its Python and this checkout: so pods run
our code without an image of it. For `cluster`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from control_plane.plane import ControlPlane
from control_plane.programs import find_program
from real_nodes import cgroups, settings
from real_nodes.gpus import Gpus
from real_nodes.images import write_images
from real_nodes.network import GATEWAY, Network, node_address, pod_range
from real_nodes.programs import DEBIAN
from runai.hub_service.agent.processes.pod_resources import PodResources
from waiting import eventually

CHECKOUT = Path(__file__).parents[2]
DRIVER = "/opt/gpus"
"""Path of the driver's library in containers."""
OURS, VENV = "/opt/runai", "/opt/venv"
"""Path in containers of this checkout and this Python's packages."""
READY_WITHIN_S = 150
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""The node's first process dies with the thread that starts it, and all of the node with it."""
ENVIRONMENT = {
    "PATH": f"{VENV}/bin:/bin:/usr/bin",
    "PYTHONPATH": f"{OURS}/.typing",
    "PYTHONUNBUFFERED": "1",
    "LD_LIBRARY_PATH": DRIVER,
    "FAKE_NVML_STATE": f"{DRIVER}/state",
}


class Node:
    """A node of the cluster."""

    def __init__(
        self, number: int, plane: ControlPlane, network: Network, place: Path, *, driver: Path
    ) -> None:
        """Keep all files of node `number` below `place`; `driver` is the fake library."""
        self.name = f"node-{number}"
        self.number = number
        self.place = place / self.name
        self.devices = [f"GPU-{number}-{device}" for device in range(2)]
        self._plane = plane
        self._network = network
        self._driver = driver
        self._groups = cgroups.below(f"{place.name}/{self.name}")
        self._process: subprocess.Popen[bytes] | None = None
        kubelets = self.place / "lib/kubelet/device-plugins"
        self.gpus = Gpus(self.place / "gpus", kubelets, self.devices)

    def __enter__(self) -> Self:
        """Start the node; `until_ready` waits for it."""
        self._write_files()
        self.begin()
        self.gpus.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes of the node."""
        self.gpus.__exit__()
        self.lose()

    def begin(self, peers: Sequence[int] = (0, 1)) -> None:
        """Start the node, as new or after it was lost."""
        cgroups.make(self._groups)
        join = "".join(f"echo 0 >{folder}/cgroup.procs; " for folder in self._groups.values())
        alone = "unshare --mount --net --pid --ipc --uts --cgroup --mount-proc --kill-child=KILL"
        begin = Path(__file__).with_name("begin_node")
        with (self.place / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*ENDS_WITH_US, "bash", "-ec", f"{join} exec {alone} bash {begin}"],
                env=self._environment(peers),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        here = Path("/proc/thread-self/ns/net").readlink()
        there = Path(f"/proc/{self._process.pid}/ns/net")
        eventually(lambda: there.readlink() != here, what=f"{self.name} has its own network")
        self._network.connect(self.number, self._process.pid)

    def until_ready(self) -> None:
        """Wait until pods can be bound to it, GPUs included."""

        def ready() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self.log_tails()}")
            found = self._plane.request("GET", "/api/v1/nodes")["items"]
            node = next((n for n in found if n["metadata"]["name"] == self.name), None)
            if node is None or node["spec"].get("taints"):
                return False
            conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", ())}
            has = node["status"].get("allocatable", {}).get("nvidia.com/gpu")
            return conditions.get("Ready") == "True" and has == str(len(self.devices))

        try:
            eventually(ready, within=READY_WITHIN_S, what=f"{self.name} is ready")
        except AssertionError as late:
            raise RuntimeError(f"{late}: {self.log_tails()}") from late

    def lose(self) -> None:
        """Kill the node at once, like a power loss."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            cgroups.remove(self._groups.values())

    def restart_kubelet(self) -> None:
        """Kill the kubelet; the node starts another one."""
        before = self._kubelet()
        before.send_signal(signal.SIGKILL)
        eventually(lambda: self._kubelet() != before, what="another kubelet")

    def allocations(self) -> dict[str, list[str]]:
        """Return the devices of each pod, from the kubelet's own records."""
        kubelet = PodResources(str(self.place / "lib/kubelet/pod-resources/kubelet.sock"))
        try:
            return kubelet.holders()
        finally:
            kubelet.close()

    def log_tails(self) -> str:
        """Return the end of its programs' output."""
        logs = (self.place / f"{name}.log" for name in ("node", "containerd", "images", "kubelet"))
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())

    # -- inside ------------------------------------------------------------------------------------

    def _kubelet(self) -> psutil.Process:
        def found() -> list[psutil.Process]:
            assert self._process is not None
            here = psutil.Process(self._process.pid).children(recursive=True)
            return [process for process in here if _name(process) == "kubelet"]

        return eventually(found, what="a kubelet")[0]

    def _environment(self, peers: Sequence[int]) -> dict[str, str]:
        programs = [find_program("kubelet"), find_program("kube-proxy")]
        folders = [str(program.parent) for program in programs if program is not None]
        debian = [f"{DEBIAN}/{folder}" for folder in ("usr/bin", "usr/sbin", "bin")]
        libraries = [f"{DEBIAN}/{folder}/x86_64-linux-gnu" for folder in ("usr/lib", "lib")]
        return {
            "PATH": ":".join([*folders, *debian, os.environ["PATH"], "/usr/sbin", "/sbin"]),
            "LD_LIBRARY_PATH": ":".join(libraries),
            "NAME": self.name,
            "ADDRESS": node_address(self.number),
            "GATEWAY": GATEWAY,
            "PLACE": str(self.place),
            "ROUTES": " ".join(
                f"{pod_range(n)}={node_address(n)}" for n in peers if n != self.number
            ),
            "HIERARCHIES": " ".join(self._groups),
            "IMAGES": " ".join(map(str, sorted(self.place.glob("*.tar")))),
        }

    def _write_files(self) -> None:
        for folder in ("cni", "gpus", "lib", "log"):
            (self.place / folder).mkdir(parents=True)
        (self.place / "resolv.conf").touch()
        shutil.copy(self._plane.folder / "ca.crt", self.place)
        shutil.copy(self._driver, self.place / "gpus")
        rights = {
            "kubelet": self._plane.user(f"system:node:{self.name}", ["system:nodes"]),
            "proxy": self._plane.user("system:kube-proxy"),
        }
        for name, file in rights.items():
            shutil.copy(file, self.place / f"{name}.kubeconfig")
        (self.place / "containerd.toml").write_text(settings.containerd(self.place, DEBIAN))
        written = {
            "cni/10-pods.conflist": settings.network(pod_range(self.number)),
            "container.json": self._container(),
            "kubelet.json": settings.kubelet(self.place),
            "proxy.json": settings.proxy(self.place),
        }
        for name, content in written.items():
            (self.place / name).write_text(json.dumps(content))
        write_images(self.place, DEBIAN / "bin/busybox", ENVIRONMENT)

    def _container(self) -> dict[str, Any]:
        """Return the base of every container: containerd's default, with this machine's Python."""
        completed = subprocess.run(
            [DEBIAN / "usr/bin/ctr", "oci", "spec"], capture_output=True, text=True, check=True
        )
        spec: dict[str, Any] = json.loads(completed.stdout)
        seen = {
            "/usr": "/usr",
            sys.base_prefix: sys.base_prefix,
            OURS: str(CHECKOUT),
            VENV: sys.prefix,
            DRIVER: str(self.place / "gpus"),
        }
        spec["mounts"] += [
            {
                "destination": inside,
                "source": outside,
                "type": "bind",
                "options": ["rbind", "ro", "nosuid", "nodev"],
            }
            for inside, outside in seen.items()
            if inside == "/usr" or not inside.startswith("/usr/")
        ]
        return spec


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:  # it has ended since the listing
        return ""
