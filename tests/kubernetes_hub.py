"""A real JupyterHub over a real API server: our spawner, and pods that are local processes.

The hub runs with the rights that zero-to-jupyterhub gives it, the service (started by the hub) with
the chart's. ana, bo and cy are members of vision. For tests with the markers `hub` and
`kubernetes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from control_plane.lab import ClusterLab, allow_jobs
from control_plane.process_kubelet import NODE, ProcessKubelet
from hub_configurations import (
    ADMIN_SETTINGS,
    DOCUMENTED_SETTINGS,
    ZERO_TO_JUPYTERHUB_SETTINGS,
    create_hub_objects,
    documented_values,
)
from hub_platform import JUPYTERHUB_RUNS, PASSWORD, TESTER_TOKEN, USERS, HubPlatform
from ports import free_ports
from runai.hub_service.client import Client
from waiting import eventually

SERVICE_TOKEN = "the-spawners-token"
PROJECTS = "projects: {{vision: {{quota: {gpus}, build_quota: 1, members: [{members}]}}}}"


class KubernetesHub(HubPlatform):
    """A hub with the same methods as a hub of one machine, and the pods of its servers."""

    lab: ClusterLab
    kubelet: ProcessKubelet
    _logged: int = 0

    def pod(self, user: str, server: str = "") -> dict[str, Any]:
        """Return the pod of a user's server, empty if there is none."""
        for pod in self.lab.namespace.pods():
            notes = pod["metadata"].get("annotations", {})
            server_key = (
                notes.get("hub.jupyter.org/username"),
                notes.get("hub.jupyter.org/servername", ""),
            )
            if server_key == (user, server):
                return pod
        return {}

    def environment(self, user: str) -> dict[str, str]:
        """Return the environment of a server, from its process."""
        pid = self.kubelet.process(self.pod(user)["metadata"]["name"]).pid
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return dict(word.decode().split("=", 1) for word in words if word)

    def servers(self, user: str) -> dict[str, Any]:
        """Return the hub's view of a user's servers, stopped ones left out."""
        found: dict[str, Any] = self.http.get(f"/hub/api/users/{user}").json()["servers"]
        return found

    def service(self, token: str = SERVICE_TOKEN) -> Client:
        return super().service(token)

    def spawn_named(self, user: str, server: str, **options: object) -> httpx.Response:
        """Request a named server."""
        return self.http.post(f"/hub/api/users/{user}/servers/{server}", json=options)

    @contextmanager
    def spawned(
        self, user: str, *, server: str = "", **options: Any
    ) -> Iterator[list[dict[str, Any]]]:
        """Request a server and stream its progress until it is ready, or has failed."""
        self._logged = len(self.log())
        answer = self.spawn_named(user, server, **options)
        if answer.status_code >= 400:  # it failed before a client could listen
            yield [{"message": answer.json()["message"], "failed": True}]
            return
        with self.progress(user, server) as events:
            yield events

    def stop_all(self) -> None:
        eventually(self._nothing_left, within=120, what="no pods")

    def _nothing_left(self) -> bool:
        """Stop all servers; return True if none is left: the hub refuses while a start ends."""
        answers = [
            self.http.delete(f"/hub/api/users/{user}/servers/{server}")
            for user in USERS
            for server in self.servers(user)
        ]
        pods = [(pod["metadata"], pod["spec"].get("nodeName")) for pod in self.lab.namespace.pods()]
        assert not pods, f"{pods}\n{[(answer.status_code, answer.text) for answer in answers]}"
        return True

    def new_log(self) -> str:
        """Return the log lines since the last request for a server."""
        return self.log()[self._logged :]


@contextmanager
def running_kubernetes_hub(
    lab: ClusterLab, place: Path, *, gpus: int = 1, config: str = ADMIN_SETTINGS
) -> Iterator[KubernetesHub]:
    """Run hub, service and node for the block; remove everything they started."""
    plane, namespace, ports = lab.plane, lab.namespace.name, free_ports(3)
    allow_jobs(plane, namespace)
    create_hub_objects(plane, namespace)
    (place / "projects.yaml").write_text(PROJECTS.format(gpus=gpus, members=", ".join(USERS)))
    (place / "values.yaml").write_text(documented_values(f"http://127.0.0.1:{ports[2]}"))
    (place / "config.py").write_text(ZERO_TO_JUPYTERHUB_SETTINGS + DOCUMENTED_SETTINGS + config)
    shell = {
        "KUBECONFIG": str(plane.service_account(namespace, "hub")),
        "RUNAI_CLUSTER": "kubernetes",
        "RUNAI_DATA_DIR": str(place / "data"),
        "RUNAI_HUB_TOKEN": SERVICE_TOKEN,
        "RUNAI_JOBS_NAMESPACE": namespace,
        "RUNAI_PROJECTS": str(place / "projects.yaml"),
        "RUNAI_TEST_NAMESPACE": namespace,
        "RUNAI_TEST_PASSWORD": PASSWORD,
        "RUNAI_TEST_PLACE": str(place),
        "RUNAI_TEST_PORTS": " ".join(map(str, ports)),
        "RUNAI_TEST_SERVICE_RIGHTS": str(plane.service_account("runai", "runai-scheduler")),
        "RUNAI_TEST_TOKEN": TESTER_TOKEN,
    }
    hub = KubernetesHub(
        *(place, ports[0], ["-m", "jupyterhub", "-f", str(place / "config.py")]),
        shell=shell,
        hidden=("JUPYTERHUB", "RUNAI", "KUBE"),
        cwd=place,
        ready=JUPYTERHUB_RUNS,
    )
    hub.lab = lab
    with ProcessKubelet(plane, place / "node", gpus) as kubelet:
        hub.kubelet = kubelet
        lab.node(NODE, gpus=gpus, status=kubelet.status)
        try:
            hub.start()
            for user in USERS:
                hub.http.post(f"/hub/api/users/{user}").raise_for_status()
            yield hub
            hub.stop_all()
        finally:
            hub.stop()


def resources(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return found


def spec_environment(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the environment in the pod's spec, values and sources alike."""
    env = pod["spec"]["containers"][0]["env"]
    return {e["name"]: e.get("value", e.get("valueFrom", "")) for e in env}


def sentence(events: list[dict[str, Any]], begin: str) -> str:
    """Return the first message that begins with `begin`, "" if there is none yet."""
    return next((e["message"] for e in events if e["message"].startswith(begin)), "")
